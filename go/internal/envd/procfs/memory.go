package procfs

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Memory is the memory of the whole sandbox, in bytes.
type Memory struct{ Total, Free, Available, Cached int64 }

// FreeMemory asks the kernel for what is free, in bytes, without what caches could give back. In gVisor this costs one
// fstat of the memory file, where /proc/meminfo has it count its pages, for milliseconds.
func FreeMemory() (free, total int64, err error) {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0, 0, err
	}
	unit := max(int64(info.Unit), 1)
	return int64(info.Freeram) * unit, int64(info.Totalram) * unit, nil
}

// MemoryReader reads /proc/meminfo through one open file and one buffer: the out-of-memory killer reads it
// up to 200 times a second and must not need memory for it.
type MemoryReader struct {
	file   *os.File
	buffer [4096]byte
}

// NewMemoryReader opens /proc/meminfo.
func NewMemoryReader() (*MemoryReader, error) {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	return &MemoryReader{file: file}, nil
}

// Read reads the present numbers.
func (r *MemoryReader) Read() (Memory, error) {
	n, err := r.file.ReadAt(r.buffer[:], 0)
	if n == 0 && err != nil {
		return Memory{}, err
	}
	return parseMemory(r.buffer[:n]), nil
}

// Close closes the file.
func (r *MemoryReader) Close() error { return r.file.Close() }

func parseMemory(data []byte) Memory {
	return Memory{
		Total: kilobytes(data, "MemTotal:"), Free: kilobytes(data, "MemFree:"),
		Available: kilobytes(data, "MemAvailable:"), Cached: kilobytes(data, "Cached:"),
	}
}

// kilobytes finds a line by its key; it allocates nothing.
func kilobytes(data []byte, key string) int64 {
	for len(data) > 0 {
		line := data
		if end := bytes.IndexByte(data, '\n'); end >= 0 {
			line, data = data[:end], data[end+1:]
		} else {
			data = nil
		}
		if len(line) < len(key) || string(line[:len(key)]) != key {
			continue
		}
		var value int64
		for _, c := range line[len(key):] {
			if c >= '0' && c <= '9' {
				value = value*10 + int64(c-'0')
			}
		}
		return value * 1024
	}
	return 0
}

// CPU is the time all processors have spent, in clock ticks.
type CPU struct{ Busy, Total uint64 }

// ReadCPU reads the first line of /proc/stat.
func ReadCPU() CPU {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPU{}
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	var cpu CPU
	for i, field := range fields {
		if i == 0 || i > 8 { // the guest columns after the eighth are in user time already
			continue
		}
		ticks, _ := strconv.ParseUint(field, 10, 64)
		cpu.Total += ticks
		if i != 4 && i != 5 { // idle, iowait
			cpu.Busy += ticks
		}
	}
	return cpu
}
