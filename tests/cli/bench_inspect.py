# SPDX-License-Identifier: Apache-2.0
"""No test: how fast `gaugeblock inspect` reads. A sound checkpoint of each published layout, with experts of Qwen3-Next's
sizes, from the page cache by one thread and by two, and from the disk, beside what dd reads of the same file.

    python3 bench_inspect.py GAUGEBLOCK FOLDER GIB [LAYOUT...]      # a Markdown table on stdout

FOLDER is on the disk that is measured and has room for GIB; each checkpoint is deleted before the next. Times are of the
whole program, the shorter of two from the cache; 1 GB is 10^9 bytes of the file. A thread's own speed is that of its
processor time, which other programs on the machine change little."""
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

if len(sys.argv) < 4:
    sys.exit(__doc__)
os.environ.update({name: "" for name in ("FAULTS", "MISTAKES", "HDF5_FAULT", "PROCESSORS", "TMPFILE_FAULT", "SANITISED")})
os.environ.update(GAUGEBLOCK=sys.argv[1], SOURCE=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
import published  # noqa: E402

FOLDER, BYTES, LAYOUTS = sys.argv[2], float(sys.argv[3]) * 2**30, sys.argv[4:] or published.LAYOUTS + ["gpt-oss-mxfp4"]
SHARD = os.path.join(FOLDER, "model.safetensors")
EXPERTS, HIDDEN, INTERMEDIATE, DRAWN = 512, 2048, 512, 8
MLP = "model.layers.{}.mlp.experts."


def drawn(layout, draw, projection):
    """A matrix of an expert, {suffix: [dtype, array]}: Gaussian, with the same largest value as every other."""
    rows, columns = (HIDDEN, INTERMEDIATE) if projection == "down_proj" else (INTERMEDIATE, HIDDEN)
    w = draw.standard_normal((rows, columns), np.float32)
    w[0, 0] = 6
    w /= np.float32(HIDDEN**0.5)
    if layout == "gpt-oss-mxfp4":
        codes, scales = published.mx(w, False, 6, published.e2m1)
        return {"blocks": ["U8", codes.reshape(rows, -1, 16)], "scales": ["U8", scales]}
    tensors = published.quantise(layout, w)
    for suffix in {"input_scale", "input_global_scale"} & set(tensors):
        tensors[suffix][1] = tensors[suffix][1] * np.float32(0.004)
    return tensors


def signed(codes, draw, four):
    """Codes of another expert: the magnitudes, with signs of its own."""
    signs = np.frombuffer(draw.bytes(codes.size), np.uint8).reshape(codes.shape)
    return codes ^ signs & np.uint8(0x88 if four else 0x80)


def tensors_of(layout, expert):
    """Names, types, shapes and arrays of a layer, in the sequence of the file; expert(n): its matrices by projection."""
    fused = layout == "gpt-oss-mxfp4"
    if not fused:
        for n in range(EXPERTS):
            for projection, tensors in expert(n).items():
                for suffix, (dtype, array) in tensors.items():
                    yield f"{n}.{projection}.{suffix}", dtype, array.shape, [array]
        return
    for name, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        for suffix in ("blocks", "scales"):
            def turns(n, parts=parts, suffix=suffix):
                one = np.stack([expert(n)[part][suffix][1] for part in parts], axis=1)
                return one.reshape(-1, *one.shape[2:])
            yield f"{name}_{suffix}", "U8", (EXPERTS, *turns(0).shape), (turns(n) for n in range(EXPERTS))


def write(layout):
    draw = np.random.default_rng(5)
    kept = [{p: drawn(layout, draw, p) for p in published.PROJECTIONS} for _ in range(DRAWN)]
    four = layout in ("modelopt-nvfp4", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "gpt-oss-mxfp4")

    def expert(n):
        made = {p: dict(tensors) for p, tensors in kept[n % DRAWN].items()}
        for tensors in made.values():
            name = next(iter(tensors))  # codes come first
            tensors[name] = [tensors[name][0], signed(tensors[name][1], draw, four)]
        return made

    one_layer = sum(array.nbytes for tensors in kept[0].values() for _, array in tensors.values()) * EXPERTS
    layers = -int(-BYTES // one_layer)
    header, at = {}, 0
    plain = {p: {s: [t[0], t[1]] for s, t in tensors.items()} for p, tensors in kept[0].items()}
    listed = [(name, dtype, shape) for name, dtype, shape, _ in tensors_of(layout, lambda n: plain)]
    for layer in range(layers):
        for name, dtype, shape in listed:
            size = int(np.prod(shape)) * (4 if dtype == "F32" else 1)
            header[MLP.format(layer) + name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    with open(SHARD, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for _ in range(layers):
            for _, _, _, arrays in tensors_of(layout, expert):
                for array in arrays:
                    stream.write(np.ascontiguousarray(array))
        stream.flush()
        os.fsync(stream.fileno())
    other = published.Published(layout)
    other.config.update(num_experts=EXPERTS, num_local_experts=EXPERTS, hidden_size=HIDDEN, num_hidden_layers=layers,
                        intermediate_size=INTERMEDIATE, moe_intermediate_size=INTERMEDIATE)
    for name, content in (("config.json", other.config), ("hf_quant_config.json", other.quantization)):
        if content:
            with open(os.path.join(FOLDER, name), "w") as stream:
                json.dump(content, stream)


def forget():
    """What the page cache has of the file."""
    with open(SHARD) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def speed(*command, threads=1):
    """GB/s of a command that reads the file once: by the clock, and by its processor time."""
    def processor():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
    start, before = time.perf_counter(), processor()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    took = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    size = os.path.getsize(SHARD) / 1e9
    return size / took, size / (processor() - before)


os.makedirs(FOLDER, exist_ok=True)
inspect = os.environ["GAUGEBLOCK"], "inspect", FOLDER
dd = "dd", f"if={SHARD}", "of=/dev/null", "bs=8M"
print("| layout | GB | a thread's own | cache, 1 thread | cache, 2 threads | cache, dd | disk, 2 threads | disk, dd |")
print("|---|---|---|---|---|---|---|---|", flush=True)
for layout in LAYOUTS:
    write(layout)
    speed(*dd)
    one, two = ([speed(*inspect, threads=t) for _ in range(2)] for t in (1, 2))
    speeds = [max(s[1] for s in one), max(s[0] for s in one), max(s[0] for s in two), speed(*dd)[0]]
    forget()
    speeds.append(speed(*inspect, threads=2)[0])
    forget()
    speeds.append(speed(*dd, "iflag=direct")[0])
    print(f"| {layout} | {os.path.getsize(SHARD) / 1e9:.1f} |" + "".join(f" {s:.2f} |" for s in speeds), flush=True)
    for name in os.listdir(FOLDER):
        os.remove(os.path.join(FOLDER, name))
