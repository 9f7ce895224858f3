"""The table of scripts/scaling: speedups are of one round and one state, and it says where ranks had no core."""
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from bench_peers_lib import scaling  # noqa: E402


def row(us, tokens, state):
    return {"us": us, "tokens": tokens, "state": state}


ROUNDS = [
    {"1": {"data:strong:usual": row(1000, 100, "none")}, "2": {"data:strong:usual": row(500, 100, "NEAR")},
     "4": {"data:strong:usual": row(500, 100, "FAR")}},
    {"1": {"data:strong:usual": row(2000, 100, "none")}, "2": {"data:strong:usual": row(1250, 100, "FAR")},
     "4": {"data:strong:usual": {"unavailable": "exit code 1: why"}}},
]


class Scaling(unittest.TestCase):
    def table(self, counts=(1, 2, 4), cores=2):
        text = scaling.markdown_of(["data"], list(counts), "usual", cores, ROUNDS, {"machine": "this one"})
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| data")]
        return text, rows

    def test_speedups_are_of_one_round_and_state(self):
        _, rows = self.table()
        one, two = rows[0], rows[1]
        self.assertEqual(one[1:6], ["strong", "1", "100", "75000", "100 %"])
        self.assertEqual(two[2:6], ["2", "100", "140000", "90 %"])  # medians of 200,000 and 80,000; of 2 and 1.6
        self.assertEqual(two[6:], ["2.00 (2.00-2.00, n=1)", "1.60 (1.60-1.60, n=1)", "-", "1.80 (1.60-2.00, n=2)"])

    def test_more_ranks_than_cores_are_called_so(self):
        text, rows = self.table()
        self.assertIn("**4 ranks on 2 cores** take turns", text)
        self.assertEqual(rows[2][2], "4 (more than cores)")
        self.assertNotIn("take turns", self.table(cores=4)[0])

    def test_what_did_not_run_says_why(self):
        _, rows = self.table()
        self.assertEqual(rows[2][4], "200000")  # of the round in which it ran
        self.assertEqual(rows[3][1:5], ["weak", "1", "", "not available: not run"])

    def test_between_two_numbers_of_ranks_states_must_agree(self):
        _, rows = self.table(counts=(2, 4))
        self.assertEqual(rows[1][6:], ["-", "-", "1.00 (1.00-1.00, n=1)", "1.00 (1.00-1.00, n=1)"])

    def test_wrong_arguments_are_refused_before_anything_is_built(self):
        for arguments, words in ((["--ways", "sideways"], "no way sideways"), (["--ranks", "two"], "--ranks two"),
                                 (["--ranks", "0,1"], "must be positive")):
            with self.subTest(arguments=arguments):
                refused = subprocess.run([sys.executable, str(ROOT / "scripts" / "scaling"), *arguments],
                                         capture_output=True, text=True)
                self.assertEqual(refused.returncode, 2)
                self.assertIn(words, refused.stderr)


if __name__ == "__main__":
    unittest.main()
