"""What scripts/gpu_check is made of: programs and their ends (command), the table (table), what it runs (rows, jobs), how a
build travels to a machine that has none of its packages (pack)."""
