"""Voice activity beside the package that publishes the model: same probabilities, same segments, and how much faster.

The reference (silero-vad, its `get_speech_timestamps` over ONNX Runtime, one thread) runs in an environment of its own;
ours runs the stages of the `vad` pipeline on one served model. Both get the recordings that tests/golden/data/vad.json
describes and a long one. Without the reference (no network) only our own speed is printed.

    python bench/vad.py                       # makes the reference's environment under .cache/bench/
    python bench/vad.py --golden              # also writes the reference's answers into vad.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from _common import ROOT, BenchError, machine, make_venv, median, progress, table
from headrace.core.context import Context
from headrace.serve.backends.onnx import OnnxBackend
from headrace.serve.config import load_config
from headrace.serve.model import Model
from headrace.serve.postprocess.vad import SpeechProbabilities, SpeechSegments
from headrace.serve.preprocess.audio import DecodeAudio
from headrace.serve.preprocess.frames import Frame
from headrace.serve.protocol import Payload
from headrace.testing.recordings import Recording, assemble, clips

GOLDEN = ROOT / "tests" / "golden" / "data" / "vad.json"
RECIPE = ROOT / "src" / "headrace" / "store" / "recipes" / "vad" / "vad-model.toml"
PACKAGES = ["silero-vad==6.2.3", "torch==2.13.0", "onnxruntime", "numpy"]
FRAME_S = 512 / 16_000

REFERENCE = """
import json, pathlib, sys, time
import numpy as np, silero_vad, torch
from silero_vad.utils_vad import OnnxWrapper
folder, repeats = pathlib.Path(sys.argv[1]), int(sys.argv[2])
files = pathlib.Path(silero_vad.__file__).parent / "data"
frame_model = OnnxWrapper(str(files / "silero_vad.onnx"), force_onnx_cpu=True)
sequence_model = silero_vad.load_silero_vad(sequence=True)
out = {"model": str(files / "silero_vad_16k_sequence.onnx"), "recordings": {}}
for path in sorted(folder.glob("*.npy")):
    samples = np.load(path)
    audio = torch.from_numpy(samples)
    took, took_sequence = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        spans = silero_vad.get_speech_timestamps(audio, frame_model, sampling_rate=16000)
        took.append(time.perf_counter() - start)
        start = time.perf_counter()
        silero_vad.get_speech_timestamps_sequence(samples, sequence_model)
        took_sequence.append(time.perf_counter() - start)
    out["recordings"][path.stem] = {
        "probabilities": frame_model.audio_forward(audio, 16000)[0].tolist(),
        "segments": [[span["start"], span["end"]] for span in spans],
        "took_s": took, "took_sequence_s": took_sequence,
    }
print(json.dumps(out))
"""


def recordings(seconds: float) -> dict[str, Recording]:
    """The recordings of vad.json, and "long": clips and pauses over and over for `seconds`, at 20 dB of noise."""
    spoken = clips(GOLDEN.parent)
    made = {
        spec["name"]: assemble(
            [spoken[i] for i in spec["clips"]], spec["pauses_s"], snr_db=spec["snr_db"], seed=spec["seed"]
        )
        for spec in json.loads(GOLDEN.read_text())["recordings"]
    }
    count = max(1, round(seconds / 3))
    cycle = [spoken[i % len(spoken)] for i in range(count)]
    made["long"] = assemble(cycle, [0.7] * (count + 1), snr_db=20.0)
    return made


def run_reference(python: Path, made: dict[str, Recording], repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="headrace-vad-") as folder:
        for name, recording in made.items():
            np.save(Path(folder) / f"{name}.npy", recording.samples)
        command = [str(python), "-c", REFERENCE, folder, str(repeats)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise BenchError(f"the reference failed:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


async def run_ours(model_file: Path, made: dict[str, Recording], repeats: int) -> dict[str, Any]:
    """Frames, probabilities and segments, timed as the reference is; and the decoding of the WAV before them."""
    model = await Model.load("vad-model", "1", OnnxBackend(model_file, "vad-model"), load_config(RECIPE))
    decode, frame, infer, segment = (
        DecodeAudio(16_000),
        Frame(512, 64),
        SpeechProbabilities("vad-model"),
        SpeechSegments(),
    )
    infer.bind(lambda name: model)
    found: dict[str, Any] = {}
    try:
        for name, recording in made.items():
            wav, took, took_decode = recording.encode("WAV", "FLOAT"), [], []
            for _ in range(repeats):
                ctx = Context()
                start = time.perf_counter()
                payload = await asyncio.to_thread(decode.process, Payload(data=wav), ctx)
                decoded = time.perf_counter()
                payload = frame.process(payload, ctx)
                payload = await infer.process(payload, ctx)
                payload = await asyncio.to_thread(segment.process, payload, ctx)
                took.append(time.perf_counter() - decoded)
                took_decode.append(decoded - start)
            found[name] = {
                "probabilities": payload.tensors["probabilities"].tolist(),
                "segments": [[s["start_s"], s["end_s"]] for s in payload.result["segments"]],
                "took_s": took,
                "took_decode_s": took_decode,
            }
        if "long" in made:
            found["concurrent"] = await _concurrent(infer, made["long"])
    finally:
        await model.close()
    return found


async def _concurrent(infer: SpeechProbabilities, recording: Recording, streams: int = 8) -> dict[str, Any]:
    payloads = [
        Frame(512, 64).process(Payload(tensors={"audio": recording.samples}), Context()) for _ in range(streams)
    ]
    start = time.perf_counter()
    await asyncio.gather(*(infer.process(payload, Context()) for payload in payloads))
    return {"streams": streams, "took_s": time.perf_counter() - start}


def write_golden(reference: dict[str, Any]) -> None:
    golden = json.loads(GOLDEN.read_text())
    for spec in golden["recordings"]:
        answer = reference["recordings"][spec["name"]]
        spec["segments"] = answer["segments"]
        spec["probabilities"] = [round(p, 5) for p in answer["probabilities"]]
    lines = ",\n".join(json.dumps(spec) for spec in golden["recordings"])
    GOLDEN.write_text(f'{{"recordings": [\n{lines}\n]}}\n')
    progress(f"wrote {GOLDEN.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    parser.add_argument("--seconds", type=float, default=300.0, help="length of the long recording")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--reference-python", type=Path, help="a Python that has silero-vad, torch and onnxruntime")
    parser.add_argument("--model", type=Path, help="silero_vad_16k_sequence.onnx, when there is no reference")
    parser.add_argument("--golden", action="store_true", help="write the reference's answers into vad.json")
    args = parser.parse_args()
    made = recordings(args.seconds)
    reference: dict[str, Any] | None = None
    try:
        python = args.reference_python or make_venv(ROOT / ".cache" / "bench" / "silero-vad", PACKAGES)
        reference = run_reference(python, made, args.repeats)
    except BenchError as error:
        if args.model is None:
            print(error, file=sys.stderr)
            return 1
        progress(f"without the reference: {error}")
    if args.golden and reference is not None:
        write_golden(reference)
    ours = asyncio.run(run_ours(args.model or Path(reference["model"] if reference else ""), made, args.repeats))

    rows, parity, ok = [], {}, True
    for name, recording in made.items():
        mine, took_s = ours[name], median(ours[name]["took_s"])
        row = [name, f"{recording.duration_s:.1f}", f"{len(mine['segments'])}", f"{recording.duration_s / took_s:.0f}"]
        if reference is not None:
            theirs = reference["recordings"][name]
            probability = float(np.abs(np.subtract(mine["probabilities"], theirs["probabilities"])).max(initial=0.0))
            same = len(mine["segments"]) == len(theirs["segments"])
            apart = np.subtract(mine["segments"], np.divide(theirs["segments"], 16_000)) if same else np.array([np.inf])
            segment_s = float(np.abs(apart).max(initial=0.0))
            ok = ok and probability <= 1e-4 and segment_s <= FRAME_S
            parity[name] = {"probability": probability, "segment_s": segment_s}
            row += [f"{median(theirs['took_s']) / took_s:.2f}", f"{median(theirs['took_sequence_s']) / took_s:.2f}",
                    f"{probability:.1e}", f"{segment_s:.4f}"]  # fmt: skip
        rows.append(row)
    head = ["recording", "s", "segments", "x real time"]
    if reference is not None:
        head += ["vs reference", "vs its sequence", "max |dp|", "max |dt| s"]
    long, together = made["long"], ours["concurrent"]
    summary = {
        "bench": "vad",
        "real_time_factor": long.duration_s / median(ours["long"]["took_s"]),
        "real_time_factor_with_decode": long.duration_s
        / median([a + b for a, b in zip(ours["long"]["took_s"], ours["long"]["took_decode_s"], strict=True)]),
        "concurrent_real_time_factor": together["streams"] * long.duration_s / together["took_s"],
        "parity": parity,
        "parity_ok": ok if reference is not None else None,
        "machine": machine(),
    }
    if reference is not None:
        theirs = reference["recordings"]["long"]
        summary["ratio_to_reference"] = median(theirs["took_s"]) / median(ours["long"]["took_s"])
        summary["ratio_to_reference_sequence"] = median(theirs["took_sequence_s"]) / median(ours["long"]["took_s"])
    if not args.json:
        print(table(head, rows))
        print(f"{together['streams']} recordings at once: {summary['concurrent_real_time_factor']:.0f} x real time; "
              f"with WAV decoding: {summary['real_time_factor_with_decode']:.0f} x")  # fmt: skip
    print(json.dumps(summary))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
