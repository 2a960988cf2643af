import json
import platform
import subprocess
import sys

from distill.versions import hardware, versions


def test_what_a_result_was_made_with():
    found = versions()
    assert found.keys() >= {"python", "torch", "transformers", "lightning", "mlflow"}
    assert platform.node() not in json.dumps(hardware())
    assert hardware()["cores"] >= 1


def test_asking_imports_nothing_heavy():
    code = (
        "import sys; from distill.versions import *; versions(); hardware();"
        "import distill.tracking.runs, distill.tracking.registry;"
        "print({'torch', 'mlflow', 'lightning', 'pandas'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
