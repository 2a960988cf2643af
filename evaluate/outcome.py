"""What an evaluation found, as JSON: `evaluation.json`, beside measurements.parquet.

A load is a sampling setting at a batch size. The first one configured decides: its champion's
numbers and verdict stand at the top level too. An interval is {"value", "low", "high"} (95%);
null stands where nothing was counted. No local paths.

Top level:
    sampling, batch_size, draft, num_draft_tokens, alpha, alpha_low, alpha_high, alpha_empirical, tokens_per_pass,
    draft_utilisation, cost_ratio, verify_cost, speedup, speedup_low, speedup_high,
    speedup_end_to_end, predicted_speedup, engine_efficiency, verdict, reason, break_even_alpha,
    best_k, draft_weights_sha256, parameter_ratio
        flat numbers and texts, of the champion of the first load
    loads         [load], in the configured order
    domains       [part], by name, of the first load's champion
    passes_share  target passes spent (screening included) over those of decoding every candidate at
                  every k over every prompt; over all loads
    calibration   [line], one per load and k of the load's champion: predicted against measured
    proxies       null below 3 decoded candidates, else {"num_draft_tokens", "points", "correlations"}
    table         [arm], one per load, candidate and k
    candidates    [candidate], all that were considered, in training order
    prompts       {"conversations", "turns", "too_long", "domains": {domain: conversations}}
    target        {"id", "weights_sha256", "parameters"}

load:
    sampling, batch_size, every flat key from `draft` to `best_k`, and
    passes_share, floors [floor], domains [part], buckets [part] (shortest first)
part:         one domain or context-length bucket, of the load's champion
    name, prompts (turns counted), units, alpha (interval), speedup (interval), tokens_per_pass
floor:        domain, floor, decision ("ship" where it holds), speedup (interval)
line:
    sampling, batch_size, candidate, num_draft_tokens, alpha, cost_ratio, verify_cost,
    predicted_v1 (v = 1, the paper's formula), predicted (with v), measured (interval), efficiency
arm:          everything of `select.TableRow`: alpha and the speedups as intervals, the rest plain
    sampling, batch_size, candidate, num_draft_tokens, units, alpha, alpha_empirical,
    tokens_per_pass, draft_utilisation, cost_ratio, verify_cost, predicted_speedup, speedup,
    speedup_end_to_end, engine_efficiency, tested_at [k], alpha_at [k]
candidate:    name, weights_sha256, parameters, tokens (trained, null if unknown),
              kl, alpha, agreement (teacher-forced on validation rows, null if not measured),
              decoded (false: screened out)
point:        candidate, kl, agreement, teacher_forced_alpha, alpha, speedup
correlation:  proxy ("kl", "teacher_forced_alpha", "agreement"), measured ("alpha", "speedup"),
              spearman, pearson, candidates
"""

FILE = "evaluation.json"
