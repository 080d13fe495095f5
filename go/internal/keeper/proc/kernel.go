package proc

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfoChild is the part of siginfo_t that waitid fills in (the SIGCHLD member of its union, on 64-bit machines).
type siginfoChild struct {
	signo  int32
	errno  int32
	code   int32
	_      int32
	pid    int32
	uid    uint32
	status int32
}

const cldExited = 1 // CLD_EXITED; the others that WEXITED reports are deaths by signal

func exitOf(info *unix.Siginfo) Exit {
	child := (*siginfoChild)(unsafe.Pointer(info))
	if child.code == cldExited {
		return Exit{Known: true, Code: int(child.status)}
	}
	return Exit{Known: true, Signal: syscall.Signal(child.status)}
}

// pidfdInfo is struct pidfd_info of its first published size.
type pidfdInfo struct {
	mask     uint64
	cgroupID uint64
	ids      [11]uint32
	exitCode int32
}

const (
	pidfdInfoExit = 1 << 3
	// _IOWR(0xFF, 11, struct pidfd_info)
	pidfdGetInfo = 3<<30 | unsafe.Sizeof(pidfdInfo{})<<16 | 0xFF<<8 | 11
)

func pidfdExit(fd int) (Exit, bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || info.mask&pidfdInfoExit == 0 {
		return Exit{}, false
	}
	status := syscall.WaitStatus(info.exitCode)
	if status.Signaled() {
		return Exit{Known: true, Signal: status.Signal()}, true
	}
	return Exit{Known: true, Code: status.ExitStatus()}, true
}
