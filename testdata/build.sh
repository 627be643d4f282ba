#!/bin/bash
# Builds every fixture in this folder, manifest.json and the tables of README.md. The bytes are the
# same on each run with the same tools: QEMU 7.2, xz 5.4.1, zstd 1.5.4, gzip 1.12, python 3.11, and
# those that guest/build.sh names.
#
#   ./build.sh
set -euo pipefail
export LC_ALL=C TZ=UTC
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
out=$tmp/out                                      # takes the place of what is here when all is made
mkdir -p "$out/guest" "$out/qcow2" "$out/raw"

# note FILE REFUSED COMMAND: moves FILE into the folder it is named for and lists it. A file that is
# mostly the zeros between tables is stored as FILE.gz: 64 KiB clusters cost 320 KiB before any data.
note() {
	local file=$1 name refused=$2 size sum command=$3 compression= format
	name=$(basename "$file")
	case $name in
	*.qcow2) format=qcow2 ;;
	*.raw.gz) format=raw compression=gzip ;;
	*.raw.xz) format=raw compression=xz ;;
	*.raw.zst) format=raw compression=zstd ;;
	*.raw) format=raw ;;
	esac
	if [ "$format" = qcow2 ]; then
		size=$(python3 -c 'import struct, sys; print(struct.unpack_from(">Q", open(sys.argv[1], "rb").read(32), 24)[0])' "$name")
		rm -f content
		if [ -z "$refused" ]; then qemu-img convert -f qcow2 -O raw "$name" content; fi
	else
		case $compression in
		gzip) gzip -dc "$name" >content ;;
		xz) xz -dc "$name" >content ;;
		zstd) zstd -qdc "$name" >content ;;
		*) cp "$name" content ;;
		esac
		size=$(stat -c %s content)
	fi
	sum=
	if [ -z "$refused" ]; then
		[ "$(stat -c %s content)" = "$size" ]
		[ $((size % 512)) = 0 ]
		sum=$(sha256sum content | cut -d' ' -f1)
	fi
	if [ "$(stat -c %s "$name")" -gt 65536 ] && [ "$format" = qcow2 ]; then
		gzip -9nc "$name" >"$out/$file.gz"
	else
		cp "$name" "$out/$file"
	fi
	printf '%s\0%s\0%s\0%s\0%s\0%s\0%s\0' "$file" "$format" "$compression" "$size" "$sum" "$refused" "$command" >>"$tmp/list"
	rm -f content
}

# make FILE REFUSED COMMAND...: runs the commands, the last of which leaves FILE's base name here.
make() {
	local file=$1 refused=$2 all
	shift 2
	printf -v all '%s && ' "$@"
	all=${all% && }
	rm -f "$(basename "$file")"
	if ! eval "$all" >log 2>&1; then
		echo "$file: $all" >&2
		cat log >&2
		exit 1
	fi
	note "$file" "$refused" "$all"
}

# Guests.
"$here/guest/build.sh" .
note guest/amd64.qcow2 '' 'qemu-img convert -c -f raw -O qcow2 amd64.raw amd64.qcow2'
note guest/arm64.qcow2 '' 'qemu-img convert -f raw -O qcow2 -o cluster_size=4k arm64.raw arm64.qcow2'
note guest/s390x.qcow2 '' 'qemu-img convert -c -f raw -O qcow2 -o compression_type=zstd s390x.raw s390x.qcow2'

# in.raw: 3 MiB and 7 sectors with text, noise and zeros in untidy places, down to the last sector.
# small.raw: a 96 KiB disk with a partition table, for the decompressors.
python3 - <<'P'
import hashlib, struct
def noise(n, seed):
    return b''.join(hashlib.sha256(b'%d %d' % (seed, i)).digest() for i in range(n // 32 + 1))[:n]
def text(n, seed):
    return b''.join(b'line %d of text %d\n' % (i, seed) for i in range(n // 12 + 1))[:n]
size = 3 * 1024 * 1024 + 7 * 512
b = bytearray(size)
def put(at, data):
    b[at:at + len(data)] = data
put(0, text(3000, 0))
put(61 * 1024 + 512, noise(5000, 1))              # across a 64 KiB boundary
put(200 * 1024, text(20000, 2))
put(512 * 1024 - 100, noise(200, 3))              # across an aligned boundary, in few bytes
put(1024 * 1024 + 4096, text(4096, 4))            # one whole 4 KiB cluster
put(2 * 1024 * 1024 - 3000, noise(7000, 5))      # across the 2 MiB boundary
put(2 * 1024 * 1024 + 300 * 1024, b'\xff' * 10000)
put(size - 5 * 512, noise(2 * 512, 6))
put(size - 512, text(512, 7))
open('in.raw', 'wb').write(b)
b = bytearray(96 * 1024)
struct.pack_into('<B3sB3sII', b, 446, 0x80, b'\0\x21\0', 0x83, b'\0\x3f\0', 8, 184)
b[510:512] = b'\x55\xaa'
put(4096, text(20000, 8))
put(50 * 1024, noise(3000, 9))
put(90 * 1024, text(6 * 1024, 10))
open('small.raw', 'wb').write(b)
P

# edit.py FILE EDIT...: what qemu-img has no option for. All QCOW2 fields are big-endian.
cat >edit.py <<'P'
import struct, sys
path = sys.argv[1]
b = bytearray(open(path, 'rb').read())
for edit in sys.argv[2:]:
    name, _, arg = edit.partition('=')
    if name == 'incompatible':                    # sets a bit of incompatible_features
        b[72:80] = struct.pack('>Q', struct.unpack_from('>Q', b, 72)[0] | 1 << int(arg))
    elif name == 'header_length':                 # moves the extensions up to a shorter version 3 header
        n, = struct.unpack_from('>I', b, 100)
        back, = struct.unpack_from('>Q', b, 8)
        assert n == 112 and back == 0
        end = 4096
        b[int(arg):end] = b[n:end] + bytes(n - int(arg))
        struct.pack_into('>I', b, 100, int(arg))
    elif name == 'snapshot_time':                 # of the first snapshot, in seconds
        at, = struct.unpack_from('>Q', b, 64)
        struct.pack_into('>II', b, at + 16, int(arg), 0)
    elif name == 'keep':                          # cuts the file
        del b[int(arg):]
    else:
        sys.exit(edit)
open(path, 'wb').write(b)
P

convert='qemu-img convert -f raw -O qcow2'
io='qemu-io -f qcow2'

# Versions, cluster sizes, compression.
f=qemu-v2-64k.qcow2;          make qcow2/$f '' "$convert -o compat=0.10 in.raw $f"
f=qemu-v2-zlib-64k.qcow2;     make qcow2/$f '' "$convert -c -o compat=0.10 in.raw $f"
f=qemu-v3-512.qcow2;          make qcow2/$f '' "$convert -o cluster_size=512 in.raw $f"
f=qemu-v3-4k.qcow2;           make qcow2/$f '' "$convert -o cluster_size=4k in.raw $f"
f=qemu-v3-64k.qcow2;          make qcow2/$f '' "$convert in.raw $f"
f=qemu-v3-2M.qcow2;           make qcow2/$f '' "$convert -o cluster_size=2M in.raw $f"
f=qemu-zlib-512.qcow2;        make qcow2/$f '' "$convert -c -o cluster_size=512 in.raw $f"
f=qemu-zlib-4k.qcow2;         make qcow2/$f '' "$convert -c -o cluster_size=4k in.raw $f"
f=qemu-zlib-64k.qcow2;        make qcow2/$f '' "$convert -c in.raw $f"
f=qemu-zlib-2M.qcow2;         make qcow2/$f '' "$convert -c -o cluster_size=2M in.raw $f"
f=qemu-zstd-4k.qcow2;         make qcow2/$f '' "$convert -c -o compression_type=zstd,cluster_size=4k in.raw $f"
f=qemu-zstd-64k.qcow2;        make qcow2/$f '' "$convert -c -o compression_type=zstd in.raw $f"
f=qemu-zstd-2M.qcow2;         make qcow2/$f '' "$convert -c -o compression_type=zstd,cluster_size=2M in.raw $f"
f=qemu-refcount-1bit.qcow2;   make qcow2/$f '' "$convert -o cluster_size=4k,refcount_bits=1 in.raw $f"
f=qemu-refcount-64bit.qcow2;  make qcow2/$f '' "$convert -o cluster_size=4k,refcount_bits=64 in.raw $f"

# Headers.
f=qemu-header-112.qcow2;      make qcow2/$f '' "$convert -c -o cluster_size=4k,compression_type=zlib in.raw $f"
f=qemu-header-104.qcow2;      make qcow2/$f '' "$convert -c -o cluster_size=4k in.raw $f" "python3 edit.py $f header_length=104"
f=qemu-bitmap.qcow2;          make qcow2/$f '' "$convert -o cluster_size=4k in.raw $f" "qemu-img bitmap --add $f changes"

# Sizes.
f=qemu-size-0.qcow2;          make qcow2/$f '' "qemu-img create -f qcow2 -o cluster_size=4k $f 0"
f=qemu-empty-1G.qcow2;        make qcow2/$f '' "qemu-img create -f qcow2 $f 1G"
f=qemu-unaligned.qcow2;       make qcow2/$f '' "qemu-img create -f qcow2 -o cluster_size=4k $f 1050112" \
	"$io -c 'write -P 0x11 1049600 512' -c 'write -P 0x22 0 3k' $f"
f=qemu-resized.qcow2;         make qcow2/$f '' "$convert -c -o cluster_size=4k in.raw $f" "qemu-img resize -f qcow2 $f 64M" \
	"$io -c 'write -P 0x33 40M 5k' $f"

# Allocation.
f=qemu-prealloc.qcow2;        make qcow2/$f '' "qemu-img create -f qcow2 -o preallocation=metadata $f 2M" \
	"$io -c 'write -P 0x44 1000k 3k' $f"
f=qemu-zero-plain.qcow2;      make qcow2/$f '' "qemu-img create -f qcow2 -o cluster_size=4k $f 2M" \
	"$io -c 'write -z 64k 64k' -c 'write -P 0x55 100k 8k' -c 'write -P 0x56 200k 6k' $f"
f=qemu-zero-allocated.qcow2;  make qcow2/$f '' "$convert -o cluster_size=4k in.raw $f" \
	"$io -c 'write -z 204k 8k' -c 'write -z 1M 64k' $f"
f=qemu-zero-unmapped.qcow2;   make qcow2/$f '' "$convert -o cluster_size=4k in.raw $f" \
	"$io -c 'write -z -u 204k 8k' -c 'discard 2M 16k' $f"
f=qemu-zlib-overwritten.qcow2; make qcow2/$f '' "$convert -c in.raw $f" \
	"$io -c 'write -P 0x66 10k 1k' -c 'write -P 0x67 2M 2k' $f"
order=$(for i in $(seq 0 39); do echo "-c 'write -P $((i + 1)) $((i * 23 % 40 * 28))k $((i % 5 + 1))k'"; done | tr '\n' ' ')
f=qemu-random-order.qcow2;    make qcow2/$f '' "qemu-img create -f qcow2 -o cluster_size=4k $f 1200k" "$io ${order% } $f"
f=qemu-snapshot.qcow2;        make qcow2/$f '' "$convert -o cluster_size=4k in.raw $f" "qemu-img snapshot -c before $f" \
	"$io -c 'write -P 0x77 0 20k' $f" "python3 edit.py $f snapshot_time=1700000000"
f=qemu-dirty.qcow2;           make qcow2/$f '' "qemu-img create -f qcow2 -o cluster_size=4k,lazy_refcounts=on $f 2M" \
	"{ (ulimit -c 0; exec $io -c 'write -P 0x88 300k 10k' -c flush -c abort $f) || true; }"

# Refused.
f=qemu-backing-file.qcow2;    make qcow2/$f backing-file "qemu-img create -f qcow2 -u -b /etc/hostname -F raw -o cluster_size=4k $f 1M"
f=qemu-data-file.qcow2;       make qcow2/$f external-data-file "qemu-img create -f qcow2 -o data_file=data.raw,cluster_size=4k $f 1M"
f=qemu-luks.qcow2;            make qcow2/$f encrypted \
	"qemu-img create -f qcow2 --object secret,id=s,data=archdisk -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10,cluster_size=4k $f 1M" \
	"python3 edit.py $f keep=4096"
f=qemu-aes.qcow2;             make qcow2/$f encrypted \
	"qemu-img create -f qcow2 --object secret,id=s,data=archdisk -o encrypt.format=aes,encrypt.key-secret=s,cluster_size=4k $f 1M"
f=qemu-corrupt-bit.qcow2;     make qcow2/$f corrupt-bit "$convert -o cluster_size=4k in.raw $f" "python3 edit.py $f incompatible=1"
f=qemu-extended-l2.qcow2;     make qcow2/$f '' "qemu-img create -f qcow2 -o extended_l2=on,cluster_size=16k $f 1M" \
	"$io -c 'write -P 0x99 100k 3k' $f"
f=qemu-unknown-feature.qcow2; make qcow2/$f unknown-incompatible-feature "$convert -o cluster_size=4k in.raw $f" "python3 edit.py $f incompatible=63"

# Raw disks and what compresses them.
f=plain.raw;                  make raw/$f '' "cp small.raw $f"
f=gzip-plain.raw.gz;          make raw/$f '' "gzip -9nc small.raw >$f"
f=gzip-multimember.raw.gz;    make raw/$f '' "split -b 40000 small.raw part." "for p in part.a?; do gzip -nc \$p; done >$f"
f=xz-plain.raw.xz;            make raw/$f '' "xz -9c small.raw >$f"
f=xz-multiblock.raw.xz;       make raw/$f '' "xz -T1 --block-size=32KiB -c small.raw >$f"
f=xz-multistream.raw.xz;      make raw/$f '' "split -b 40000 small.raw part." "for p in part.a?; do xz -c --check=sha256 \$p; done >$f"
f=zstd-plain.raw.zst;         make raw/$f '' "zstd -q -19 -c small.raw >$f"
f=zstd-skippable.raw.zst;     make raw/$f '' "split -b 40000 small.raw part." \
	"{ printf 'P*M\\030\\007\\0\\0\\0skip me'; for p in part.a?; do zstd -q -c \$p; printf '_*M\\030\\003\\0\\0\\0end'; done; } >$f"

rm -f "$here"/guest/*.qcow2* "$here"/qcow2/* "$here"/raw/*
cp -r "$out/." "$here"

# manifest.json and the tables of README.md, from the list.
python3 - "$tmp/list" "$here" <<'P'
import json, os, sys
v = open(sys.argv[1]).read().split('\0')[:-1]
here = sys.argv[2]
all = []
for i in range(0, len(v), 7):
    file, format, compression, size, sha, refused, command = v[i:i + 7]
    all.append(dict(file=file, format=format, compression=compression, virtual_size=int(size), sha256=sha,
                    refused=refused, command=command))
with open(os.path.join(here, 'manifest.json'), 'w') as f:
    json.dump(all, f, indent=2)
    f.write('\n')
out = []
for folder in ('guest', 'qcow2', 'raw'):
    out.append('\n## %s\n\n| fixture | virtual size | sha256 of the content, or why refused | command |\n|---|---:|---|---|\n' % folder)
    for x in all:
        if x['file'].split('/')[0] != folder:
            continue
        name = x['file'].split('/')[1]
        if not os.path.exists(os.path.join(here, x['file'])):
            name += ' (.gz)'
        out.append('| %s | %d | %s | `%s` |\n' % (name, x['virtual_size'], '**%s**' % x['refused'] if x['refused'] else '`%s`' % x['sha256'],
                                                  x['command'].replace('|', '\\|')))
path = os.path.join(here, 'README.md')
head = open(path).read().split('<!-- from here on written by build.sh -->')[0]
open(path, 'w').write(head + '<!-- from here on written by build.sh -->\n' + ''.join(out))
P
