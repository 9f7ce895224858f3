"""Words of docs/design.md's glossary have one meaning in type names, and words that went do not come back.

Types are those of the headers of runtime/, collectives/ and proto/ that are not members of another. Each one whose name has a
word of the glossary stands in that word's line, so a new one is looked at once: does it mean what the line says?
"""
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from check_layers import without_comments_and_strings  # noqa: E402

PAGE = ROOT / "docs" / "design.md"
FOLDERS = ("runtime", "collectives", "proto")

# Words of the glossary that types are held to; the others are too common in names (rank, path, life) or in no type.
HELD = {"Announcement", "Arena", "Batch", "Cache", "Channel", "Chunk", "Collective", "Communicator", "Completion",
        "Connection", "Coordinator", "Doorbell", "Exchange", "Executor", "Follower", "Frame", "Generation", "Group",
        "Heap", "Hierarchy", "Meeting", "Negotiator", "Operation", "Peer", "Place", "Plan", "Planned", "Post",
        "Protocol", "Request", "Response", "Root", "Script", "Shard", "Slice", "Store", "Transfer", "Transport"}
# Type: why its name may have a word of the glossary that it is not.
OTHER_MEANING = {
    "negotiation::RequestPtr": "an announcement, which is Horovod's Request; the wire keeps its name",
    "plan::RequestId": "a rank's own number of one of its announcements",
    "wire::Request": "the same as negotiation::RequestPtr",
    "wire::RequestList": "the same",
    "wire::StoreRequest": "what a client asks the store",
    "wire::PlaceInfo": "a place, with what its rank tells the others of itself",
    "mpi::Chunk": "a buffer of a stream; MPI's part of the library knows no batches",
    "shm::Place": "where a tensor lies; seen inside the channel only",
}
# What is said no more, as a part of a type's name; and the word now.
GONE = {"Lane": "channel", "Road": "protocol", "Gear": "path", "Baton": "progress lock", "Domain": "group engine",
        "Seat": "group", "Slot": "cache id", "Ticket": "request", "Messenger": "tag transport", "Window": "staging buffer",
        "StandIn": "neutral contribution", "Work": "request", "Prepared": "persistent request",
        "Submission": "request", "Pending": "request", "Straight": "in place", "Owner": "executor", "Effects": "actions"}
# One name, two types in different namespaces, with the reason.
THEIRS = ("timeline::nvtx::",)  # words of other people's interfaces
TWICE = {
    "Action": "each value machine has its own: the follower's are among the negotiator's",
    "Code": "CUDA's result codes, as its header has them",
    "Combine": "a kernel's function type; work that the channel's files share",
    "Config": "NCCL's struct, as its header has it",
    "Deadline": "a point in time: of the mesh's sockets, of the store's",
    "Event": "CUDA's; the timeline's",
    "Finish": "what a kernel does last; the action that ends an operation",
    "Functions": "what is looked up in a library that is opened at run time: CUDA's, NCCL's",
    "Library": "the same",
    "Mark": "CUDA's: a place in a stream; the timeline's",
    "Meeting": "of a collective's ranks; before there are connections",
    "Operation": "as the user asks for it; as the flight recorder has noted it",
    "Place": "of a rank in its job; of a tensor, seen inside the channel only",
    "PlannedBatch": "as the rank follows it; the same on the wire",
    "Progress": "the counters' group of that name; how far a plan has come",
    "Published": "counters that any thread reads; a life page's",
    "Request": "an operation of this rank; its announcement on the wire",
    "RequestPtr": "shared by the handle; an announcement that the agreement keeps",
    "StepPlan": "as the rank follows it; the same on the wire",
    "Stream": "CUDA's, NCCL's and MPI's notions of one",
    "Time": "std::chrono's, of each value machine",
    "Waiting": "how long a thread has looked; an announcement that waits for others",
    "Writer": "of a timeline; of a message",
}

TOKEN = re.compile(
    r"(?P<space>\bnamespace(?:\s+(?P<space_name>[\w:]+))?\s*\{)"
    r"|\b(?:class|struct|enum\s+class|enum|union)\s+(?:\[\[\w+\]\]\s*)?(?:alignas\s*\((?:[^()]|\([^()]*\))*\)\s*)?(?P<type>[A-Za-z_][\w:]*)"
    r"(?:\s+final)?\s*(?::[^:;{(][^;{]*)?\{"
    r"|\busing\s+(?P<alias>\w+)\s*=|(?P<open>\{)|(?P<close>\})")


def types_in(code, members=False):
    """The types at namespace scope of a header, as "engine::Request": without rueda. members: those of types too."""
    found, opened = [], []
    for match in TOKEN.finditer(without_comments_and_strings(code)):
        name = match.group("type") or match.group("alias")
        if name and (members or "::" not in name and all(kind == "namespace" for kind, _ in opened)):
            spaces = [space for _, space in opened if space]
            found.append(re.sub(r"^rueda::", "", "::".join(spaces + [name])))
        if match.group("space"):
            opened.append(("namespace", match.group("space_name")))
        elif match.group("type") or match.group("open"):
            opened.append(("other", ""))
        elif match.group("close") and opened:
            opened.pop()
    return found


def parts_of(name):
    """"ProcessSetTable": Process, Set, Table. Of the whole name and not of its namespace."""
    return re.findall(r"[A-Z][a-z0-9]*", name.rsplit("::", 1)[-1])


def glossary(text):
    """{line's words: (parts, types)} of the table."""
    table = text.split("<!-- words -->")[1].split("<!-- end of words -->")[0]
    lines = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[1] and cells[1] != "word" and not cells[1].startswith("-"):
            parts = {word.capitalize() for word in re.findall(r"[a-z]+", cells[1])}
            lines[cells[1]] = (parts, set(re.findall(r"`([\w:]+)`", cells[3])))
    return lines


class Glossary(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lines = glossary(PAGE.read_text(encoding="utf-8"))
        cls.types, cls.members = {}, {}
        for folder in FOLDERS:
            for file in sorted((ROOT / folder).rglob("*.h")):
                if file.stem.endswith("-inl"):
                    continue  # compiled once for each kind of processor, seen by nobody
                text, path = file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()
                for name in types_in(text):
                    cls.types.setdefault(name, set()).add(path)
                for name in types_in(text, members=True):
                    cls.members.setdefault(name, set()).add(path)

    def test_it_was_read(self):
        self.assertGreater(len(self.lines), 30)
        self.assertGreater(len(self.types), 200)

    def test_each_word_has_one_line(self):
        seen = {}
        for line in self.lines:
            for word in line.split(", "):
                self.assertNotIn(word, seen, f"{word} is explained twice")
                seen[word] = line

    def test_words_that_types_are_held_to_are_in_it(self):
        parts = set().union(*(parts for parts, _ in self.lines.values())) | {"Planned"}
        self.assertLessEqual(HELD, parts)

    def test_types_of_its_lines_exist(self):
        for line, (_, types) in self.lines.items():
            with self.subTest(line=line):
                self.assertFalse(types - set(self.types), "there is no such type")

    def test_types_stand_in_the_lines_of_their_words(self):
        for name, files in sorted(self.types.items()):
            for part in HELD & set(parts_of(name)):
                word = {"Planned": "Plan"}.get(part, part)
                lines = [types for parts, types in self.lines.values() if word in parts]
                with self.subTest(type=name, word=part):
                    self.assertTrue(name in OTHER_MEANING or any(name in types for types in lines),
                                    f"{name} in {', '.join(sorted(files))}: put it into a line of \"{part.lower()}\" in "
                                    "docs/design.md if it means that, else call it otherwise")

    def test_words_that_went_stay_away(self):
        for name, files in sorted(self.members.items()):
            if name.startswith(THEIRS):
                continue
            joined = "".join(parts_of(name))
            for word, now in GONE.items():
                said = word in parts_of(name) or (word == "StandIn" and word in joined)
                with self.subTest(type=name):
                    self.assertFalse(said, f"{name} in {', '.join(sorted(files))}: the word is {now}")

    def test_one_name_is_one_type(self):
        by_name = {}
        for name in self.types:
            by_name.setdefault(name.rsplit("::", 1)[-1], set()).add(name)
        twice = {name: full for name, full in by_name.items() if len(full) > 1}
        for name, full in sorted(twice.items()):
            with self.subTest(name=name):
                self.assertTrue(name in TWICE, f"{', '.join(sorted(full))}: two types of one name")
        self.assertFalse(set(TWICE) - set(twice), "a reason for what is not there")


class Reading(unittest.TestCase):
    """The checks see what they should."""

    def test_types_are_found_with_their_namespaces(self):
        code = ("namespace rueda {\nstruct Declared;\nnamespace engine {\nclass Request final : public A {\n  struct Inner {};\n"
                "};\nusing RequestPtr = int;\nenum class Kind : int { kA };\n}\n}  // comment: struct Not {\n")
        self.assertEqual(types_in(code), ["engine::Request", "engine::RequestPtr", "engine::Kind"])

    def test_names_fall_into_words(self):
        self.assertEqual(parts_of("engine::ProcessSetTable"), ["Process", "Set", "Table"])


if __name__ == "__main__":
    unittest.main()
