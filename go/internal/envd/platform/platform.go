// Package platform tells which kernel envd runs on, for the few places where gVisor lacks what Linux does.
package platform

import (
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// GVisor says whether the kernel is gVisor's, by the first line of its kernel log.
var GVisor = sync.OnceValue(func() bool {
	buffer := make([]byte, 4096)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buffer)
	return err == nil && isGVisor(string(buffer[:n]))
})

func isGVisor(kernelLog string) bool { return strings.Contains(kernelLog, "Starting gVisor") }
