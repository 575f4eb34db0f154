"""From lines, rows and templates to pushed tasks, resumably."""
