package edge_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"
)

const inNamespace = "FORKYARD_EDGE_TEST_NETNS"

// TestMain runs the tests in a network namespace of their own, where every address of 127/8 has all its ports free:
// a sandbox's envd has a fixed port, which something on this machine may use. Where namespaces are not allowed the
// tests run here.
func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) == "" {
		runtime.LockOSThread() // the child dies with the thread that started it
		again := exec.Command("/proc/self/exe", os.Args[1:]...)
		again.Env = append(os.Environ(), inNamespace+"=1")
		again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
		again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if os.Getuid() != 0 {
			again.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			again.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		}
		if err := again.Start(); err == nil {
			err = again.Wait()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				os.Exit(exit.ExitCode())
			}
			if err == nil {
				os.Exit(0)
			}
		}
	} else if err := raiseLoopback(); err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
	log.SetOutput(io.Discard) // the HTTP library's words about what hostile servers send
	os.Exit(m.Run())
}

func raiseLoopback() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	var request struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], "lo")
	request.flags = syscall.IFF_UP
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}
