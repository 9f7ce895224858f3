"""The table of docs/gpu.md. It is on disk after every row, so that a machine that is taken away leaves what was found until then."""

import json

NOT_RUN, FAILED, PASSED, MEASURED = "not run", "FAILED", "passed", "measured"


def reason(output):
    """The line that says most of why a program failed: an exception's, a Catch message's, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if line.startswith("WRONG") or "no end after" in line or " CUDA_ERROR_" in line:
            return line
        if "Error: " in line and not line.startswith("File "):
            return line
        if line == "with expansion:" and i + 1 < len(lines):
            return f"{lines[i - 1]}: {lines[i + 1]}"
        if line.startswith("with message") and i + 1 < len(lines):
            return lines[i + 1]
    return lines[-1] if lines else ""


class Table:
    """Lines of each row. folder: gets gpu_check.json and gpu_check.md; what an earlier run left there stays for other rows."""

    def __init__(self, folder, about):
        self._json, self._markdown = folder / "gpu_check.json", folder / "gpu_check.md"
        self.about, self.rows = about, {}
        try:
            old = json.loads(self._json.read_text(encoding="utf-8"))
            if old["about"]["GPUs"] == about["GPUs"]:
                self.rows = old["rows"]
        except (OSError, ValueError, KeyError):
            pass

    def begin(self, row):
        self.rows[row] = []

    def add(self, row, what, result, detail=""):
        """One line; detail: its last line is shown."""
        lines = [line.strip() for line in detail.splitlines() if line.strip()]
        detail = lines[-1][:300] if lines else ""
        self.rows[row].append([what, result, detail])
        print(f"  {result:8} {what}" + (f": {detail}" if detail else ""), flush=True)
        self.save()

    def outcome(self, row, what, status, output):
        """The line of a program that ended with this status."""
        if status == 0:
            self.add(row, what, PASSED, output)
        else:
            self.add(row, what, FAILED, reason(output) or f"exit {status}")

    def failed(self):
        return any(result == FAILED for lines in self.rows.values() for _, result, _ in lines)

    def markdown(self):
        head = [f"_{key}: {value}_  " for key, value in self.about.items()]
        lines = [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for row in self.rows.values() for line in row]
        return "\n".join([*head, "", "| what | result | |", "|---|---|---|", *lines]) + "\n"

    def save(self):
        self._json.write_text(json.dumps({"about": self.about, "rows": self.rows}, indent=1), encoding="utf-8")
        self._markdown.write_text(self.markdown(), encoding="utf-8")
