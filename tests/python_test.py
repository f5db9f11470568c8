#!/usr/bin/env python3
"""What Python makes of a run: python_test.py DDAEBM_PROGRAM MODULE_FOLDER

The module's numbers are the program's; checkpoints open in safetensors; an exported run gives the
same numbers in PyTorch. Packages that are not there are skipped, with a word.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

program, module_folder = sys.argv[1], sys.argv[2]
sys.path.insert(0, module_folder)
import ddaebm  # noqa: E402

TINY = """
[data]
name = "{data}"
[train]
iterations = 6
batch = 8
evaluation_samples = 1000
[net]
branch = [4, 6]
trunk = [8]
energy = "{energy}"
nice.hidden = [5, 5]
[image_net]
channels = 8
multipliers = [1, 2]
attention = [4]
blocks = 1
latent = 4
"""


def run(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([program, *map(str, arguments)], env=environment, text=True,
                          capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


class Python(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        images = np.random.default_rng(0).integers(0, 256, (64, 3, 8, 8), dtype=np.uint8)
        np.save(cls.folder / "images.npy", images)
        for name, data, energy in [("toy", "8gaussians", "mlp"), ("nice", "8gaussians", "nice"),
                                   ("images", cls.folder / "images.npy", "mlp")]:
            settings = cls.folder / f"{name}.toml"
            settings.write_text(TINY.format(data=data, energy=energy))
            run("train", settings, "--quiet", "--out", cls.folder / name)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def data(self, name):
        shape = (5, 3, 8, 8) if name == "images" else (5, 2)
        return np.random.default_rng(1).uniform(-1, 1, shape)

    def test_scores_and_samples_are_the_programs(self):
        model = ddaebm.load(str(self.folder / "toy"))
        self.assertEqual(model.event, [2])
        self.assertIsNone(model.threshold)
        with self.assertRaisesRegex(ddaebm.Error, "--false-alarm"):
            model.is_in(self.data("toy"))
        x = self.data("toy")
        np.save(self.folder / "x.npy", x)
        run("score", self.folder / "toy", self.folder / "x.npy", "-o", self.folder / "scores.npy")
        scores = model.score(x)
        self.assertEqual((scores.shape, scores.dtype), ((5,), np.float64))
        np.testing.assert_array_equal(scores, np.load(self.folder / "scores.npy"))
        # Any type and any order in memory.
        np.testing.assert_allclose(model.score(np.asfortranarray(x.astype(np.float32))), scores,
                                   atol=1e-5)
        run("sample", self.folder / "toy", "-n", 7, "--seed", 3, "-o", self.folder / "s.npy")
        samples = model.sample(7, seed=3)
        self.assertEqual((samples.shape, samples.dtype), ((7, 2), np.float32))
        np.testing.assert_array_equal(samples, np.load(self.folder / "s.npy"))

    def test_answers_are_the_programs(self):
        folder = self.folder / "answers"
        shutil.copytree(self.folder / "toy", folder)
        np.save(self.folder / "y.npy", np.concatenate([self.data("toy"), [[40.0, -30.0]]]))
        for reference in [], ["--reference", "moons"]:
            run("ood", folder, "--in", "moons", "--out", "rings", "-n", 100, "--resamples", 5,
                "--false-alarm", 0.1, *reference)
            run("score", folder, self.folder / "y.npy", "-o", self.folder / "y.csv")
            told = [line.split(",")[-1] for line in
                    (self.folder / "y.csv").read_text().splitlines()[1:]]
            model = ddaebm.load(str(folder))
            answers = model.is_in(np.load(self.folder / "y.npy"))
            self.assertEqual(answers.dtype, bool)
            self.assertEqual(["in" if a else "out" for a in answers], told)
            self.assertFalse(answers[-1])

    def test_what_a_user_can_mend_is_an_error(self):
        with self.assertRaisesRegex(ddaebm.Error, "not a run folder"):
            ddaebm.load(str(self.folder))
        model = ddaebm.load(str(self.folder / "toy"))
        with self.assertRaisesRegex(ddaebm.Error, r"\[5, 3\], the model wants \[N, 2\]"):
            model.score(np.zeros((5, 3)))
        with self.assertRaisesRegex(ddaebm.Error, "one at least"):
            model.sample(0)
        with self.assertRaises(TypeError):
            model.score("words")
        with self.assertRaises(ValueError):  # what ddaebm.Error is
            ddaebm.load(str(self.folder / "toy"), device="tpu")

    def test_another_pytorch_in_the_process_is_refused(self):
        code = "import sys, types; t = types.ModuleType('torch'); t.__version__ = '0.1.0'; " \
               "sys.modules['torch'] = t; import ddaebm"
        done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                              env={**os.environ, "PYTHONPATH": module_folder})
        self.assertIn("PyTorch 0.1.0 is loaded already", done.stderr)

    def test_checkpoints_open_in_safetensors(self):
        python = os.environ.get("DDAEBM_TEST_PYTHON", sys.executable)
        if subprocess.run([python, "-c", "import safetensors"], capture_output=True).returncode != 0:
            self.skipTest("safetensors is not installed")
        code = """
import sys, numpy
from safetensors.numpy import load_file
tensors = load_file(sys.argv[1])
weight = tensors["average.energy.net.trunk.weight0"]
assert (weight.shape, weight.dtype) == ((8, 12), numpy.float32), weight
assert all(numpy.isfinite(t).all() for t in tensors.values())
"""
        file = next((self.folder / "toy").glob("checkpoint-*.safetensors"))
        subprocess.run([python, "-c", code, file], check=True)

    def test_exported_runs_give_the_same_numbers_in_pytorch(self):
        # In a process of its own: the module brings a LibTorch, PyTorch another.
        if importlib.util.find_spec("torch") is None:
            self.skipTest("PyTorch is not installed")
        code = """
import sys, numpy, torch
model = torch.jit.load(sys.argv[1]).eval()
x = torch.from_numpy(numpy.load(sys.argv[2]))
numpy.save(sys.argv[3], model.score(x).numpy())
assert torch.equal(model(x), model.score(x))
assert model.sample(3).shape == x[:3].shape and model.sample(3).isfinite().all()
assert model.to(torch.float32).score(x[:1].float()).shape == (1,)
"""
        for name in ["toy", "nice", "images"]:
            with self.subTest(name):
                file, x, y = (self.folder / f"{name}{end}" for end in (".pt", "-x.npy", "-y.npy"))
                np.save(x, self.data(name))
                run("export", self.folder / name, "-o", file)
                subprocess.run([sys.executable, "-c", code, file, x, y], check=True)
                wanted = ddaebm.load(str(self.folder / name)).score(self.data(name))
                np.testing.assert_allclose(np.load(y), wanted, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
