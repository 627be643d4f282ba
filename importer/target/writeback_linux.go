package target

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriteback has the kernel begin to write all of file's dirty pages, and does not wait
// for them. See sync_file_range(2).
func startWriteback(file *os.File) {
	conn, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _ = unix.SyncFileRange(int(fd), 0, 0, unix.SYNC_FILE_RANGE_WRITE) })
}
