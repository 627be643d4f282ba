#!/bin/bash
# Builds the three guest disks: the partition tables, boot loaders and boot
# records that cloud images have, and no operating system. The bytes are the same on each run.
#
#   ./build.sh DIR        DIR gets amd64, arm64 and s390x as .raw and as .qcow2
#
# ../build.sh calls it and puts the .qcow2 files here.
#
# Needs qemu-img with zstd, sgdisk (gdisk), mkfs.vfat (dosfstools), mtools, parted and python3.
# QEMU 7.2, gdisk 1.0.9, dosfstools 4.2, mtools 4.0.32 and parted 3.5 made the files that are here.
set -euo pipefail
export LC_ALL=C TZ=UTC SOURCE_DATE_EPOCH=1700000000 MTOOLS_SKIP_CHECK=1
raw=$(mkdir -p "${1:?where to?}" && cd "$1" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"

# pe MACHINE FILE: the headers of a PE32+ EFI application that does nothing, 512 bytes.
pe() {
	python3 - "$1" "$2" <<'P'
import struct, sys
b = bytearray(512)
b[0:2] = b'MZ'
struct.pack_into('<I', b, 0x3c, 0x40)                                             # e_lfanew
b[0x40:0x44] = b'PE\0\0'
struct.pack_into('<HHIIIHH', b, 0x44, int(sys.argv[1], 16), 1, 0, 0, 0, 0xf0, 0x22e)  # COFF header
struct.pack_into('<H', b, 0x58, 0x20b)                                            # PE32+
struct.pack_into('<I', b, 0x58 + 60, 0x200)                                       # SizeOfHeaders
struct.pack_into('<H', b, 0x58 + 68, 10)                                          # subsystem: EFI application
b[0x148:0x150] = b'.text\0\0\0'
open(sys.argv[2], 'wb').write(b)
P
}

# esp FILE KIB FAT-BITS SECTORS-PER-CLUSTER LOADER NAME: an EFI system partition with one loader.
esp() {
	rm -f "$1"
	truncate -s "$2K" "$1"
	mkfs.vfat -F "$3" -s "$4" -n ESP -i 12345678 --invariant "$1" >/dev/null
	mmd -i "$1" ::/EFI ::/EFI/BOOT
	mcopy -i "$1" "$5" "::/EFI/BOOT/$6"
}

# put FILE DISK LBA
put() { dd if="$1" of="$2" bs=512 seek="$3" conv=notrunc,sparse status=none; }

# fill DISK LBA SEED: what stands for a root file system from LBA to the disk's end (the backup GPT's
# 33 sectors left out): noise, text, and runs of both that begin and end within clusters.
fill() {
	python3 - "$@" <<'P'
import hashlib, os, sys
path, first, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
end = os.path.getsize(path) // 512 - 40
def noise(n, i):
    return b''.join(hashlib.sha256(b'%s %d %d' % (seed.encode(), i, j)).digest() for j in range(n // 32))
def text(n, i):
    s = b''.join(b'%s: line %d of part %d\n' % (seed.encode(), j, i) for j in range(n // 16))
    return s[:n]
step = (end - first) // 12
with open(path, 'r+b') as f:
    for i in range(12):
        f.seek((first + i * step + (i * 37) % 61) * 512)
        f.write(noise(512 * (3 + i % 5), i) if i % 2 else text(512 * (5 + i % 7), i))
    f.seek((end - 5) * 512)                        # the end of the disk counts too
    f.write(noise(1024, 99) + text(512, 99))
P
}

# amd64: GPT, BIOS boot partition, ESP (FAT12), root partition of the x86-64 DPS type. Debian's shape.
d=$raw/amd64.raw
rm -f "$d"; truncate -s 4M "$d"
sgdisk -a 8 -U 11111111-1111-4111-8111-111111111111 \
	-n 14:64:+256K -t 14:ef02 -c 14:bios -u 14:11111111-1111-4111-8111-11111111110e \
	-n 15:1024:+1M -t 15:ef00 -c 15:esp -u 15:11111111-1111-4111-8111-11111111110f \
	-n 1:4096:0 -t 1:4f68bce3-e8cd-4db1-96e7-fbcaf984b709 -c 1:root -u 1:11111111-1111-4111-8111-111111111101 \
	"$d" >/dev/null
pe 8664 x64.efi
esp esp.img 1024 12 4 x64.efi BOOTX64.EFI
put esp.img "$d" 1024
fill "$d" 4096 amd64

# arm64: GPT, ESP (FAT16, of the smallest size that is FAT16 with one sector a cluster), root
# partition of the arm64 DPS type.
d=$raw/arm64.raw
rm -f "$d"; truncate -s 6M "$d"
sgdisk -a 8 -U 22222222-2222-4222-8222-222222222222 \
	-n 15:64:+3M -t 15:ef00 -c 15:esp -u 15:22222222-2222-4222-8222-22222222220f \
	-n 1:6400:0 -t 1:b921b045-1df0-41c3-af44-4c6f280d3fae -c 1:root -u 1:22222222-2222-4222-8222-222222222201 \
	"$d" >/dev/null
pe aa64 aa64.efi
esp esp.img 3072 16 1 aa64.efi BOOTAA64.EFI
put esp.img "$d" 64
fill "$d" 6400 arm64

# s390x: MBR, one partition, list-directed zIPL record over the boot code, as zipl writes it: 152
# bytes of the first sector, the rest of which stays. (parted asks for udevadm, which no file needs.)
d=$raw/s390x.raw
rm -f "$d"; truncate -s 4M "$d"
parted -s "$d" mklabel msdos mkpart primary ext4 1MiB 100% 2>/dev/null
python3 - "$d" <<'P'
import struct, sys
table = 2048 + 100                                 # blocks of 512 bytes, in the partition
component = table + 1
stage = component + 1
with open(sys.argv[1], 'r+b') as f:
    f.seek(0x1b8)
    f.write(struct.pack('<I', 0x390390))           # the disk identifier, which parted makes up
    b = bytearray(152)                             # boot record
    b[0:4] = b'zIPL'
    struct.pack_into('>I', b, 4, 1)                # version
    struct.pack_into('>QHH4x', b, 16, table, 512, 0)
    f.seek(0)
    f.write(b)
    b = bytearray(512)                             # program table: one program, the default one
    b[0:4] = b'zIPL'
    struct.pack_into('>QHH4x', b, 16, component, 512, 0)
    f.seek(table * 512)
    f.write(b)
    b = bytearray(512)                             # component table, type 0: IPL
    b[0:4] = b'zIPL'
    struct.pack_into('>QHH4x7xBQ', b, 32, stage, 512, 0, 2, 0xa000)                # load
    struct.pack_into('>QHH4x7xBQ', b, 64, 0, 0, 0, 1, 0x00080000_8000a050)         # execute: the PSW
    f.seek(component * 512)
    f.write(b)
    f.write(struct.pack('>2sH', b'\x07\xf0', 0) * 128)                             # the component
P
fill "$d" 2200 s390x

cd "$raw"
qemu-img convert -c -f raw -O qcow2 amd64.raw amd64.qcow2
qemu-img convert -f raw -O qcow2 -o cluster_size=4k arm64.raw arm64.qcow2
qemu-img convert -c -f raw -O qcow2 -o compression_type=zstd s390x.raw s390x.qcow2
