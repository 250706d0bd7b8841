"""scripts/install_packages on a pretended machine: tools of its own in PATH, nothing of the real one is touched."""
import atexit
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/install_packages"
PACKAGES = [line.split() for line in (ROOT / "scripts/packages.txt").read_text().splitlines()
            if line and not line.startswith("#")]


class Machine:
    """A folder that is the whole PATH, with pretended dpkg-query, apt-get, id and sudo that write what they were told."""

    def __init__(self, installed=(), root=True, sudo="", debian=True, apt_get="exit 0"):
        self.path = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, self.path)
        self.log = self.path / "log"
        for tool in ("sh", "awk", "dirname", "mktemp", "rm", "tail", "env", "cat", "true"):
            (self.path / tool).symlink_to(subprocess.check_output(["which", tool], text=True).strip())
        if debian:
            cases = "".join(f"{name}) echo installed;; " for name in installed)
            self.tool("dpkg-query", f'for last; do :; done; case "$last" in {cases}*) exit 1;; esac')
            self.tool("apt-get", f'echo "apt-get $*" >> {self.log}; {apt_get}')
        self.tool("id", "echo 0" if root else "echo 1000")
        if sudo:
            self.tool("sudo", sudo)

    def tool(self, name, body):
        path = self.path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, *groups):
        done = subprocess.run(["/bin/sh", SCRIPT, *groups], env={"PATH": str(self.path), "TMPDIR": str(self.path)},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr, self.log.read_text() if self.log.exists() else ""


class InstallPackages(unittest.TestCase):
    def test_list_is_well_formed(self):
        self.assertEqual({group for group, _ in PACKAGES}, {"build", "test", "check"})
        self.assertEqual(len({name for _, name in PACKAGES}), len(PACKAGES))

    def test_nothing_is_done_when_all_is_there(self):
        machine = Machine(installed=[name for _, name in PACKAGES])
        self.assertEqual(machine.run("build", "test", "check"), (0, "", ""))

    def test_root_installs_what_is_missing_only(self):
        machine = Machine(installed=[name for _, name in PACKAGES if name != "cmake"])
        code, _, log = machine.run("build", "test")
        self.assertEqual(code, 0)
        self.assertIn("update", log.splitlines()[0])
        self.assertTrue(log.splitlines()[1].endswith("install -y --no-install-recommends cmake"), log)
        self.assertIn("DPkg::Lock::Timeout", log)

    def test_other_groups_are_left_alone(self):
        machine = Machine(installed=[name for group, name in PACKAGES if group == "build"])
        self.assertEqual(machine.run("build")[2], "")

    def test_a_user_goes_through_sudo(self):
        code, _, log = Machine(root=False, sudo='[ "$1" = -n ] && shift; exec "$@"').run("check")
        self.assertEqual(code, 0)
        self.assertIn("codespell", log)

    def test_the_command_is_printed_where_it_cannot(self):
        for machine in (Machine(root=False), Machine(root=False, sudo="exit 1"), Machine(apt_get="exit 100")):
            code, text, _ = machine.run("build")
            self.assertEqual(code, 1)
            self.assertIn("apt-get install -y --no-install-recommends g++ cmake", text)

    def test_other_systems_are_left_to_the_user(self):
        code, text, _ = Machine(debian=False).run("build")
        self.assertEqual(code, 0)
        self.assertIn("packages.txt", text)

    def test_usage(self):
        self.assertEqual(Machine().run()[0], 2)
        self.assertEqual(Machine().run("games")[0], 2)


if __name__ == "__main__":
    unittest.main()
