"""Before any test module imports torch."""

from distill.process import settle

settle()
