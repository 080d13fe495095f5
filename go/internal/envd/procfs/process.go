// Package procfs reads what envd needs from /proc: processes, memory, sockets and routes.
package procfs

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is one entry of /proc.
type Process struct {
	PID, PPID, PGID, SID int
	State                byte   // R, S, D, T, Z, ...
	StartTime            uint64 // clock ticks since boot: with the pid it names a process for good
	CPUTicks             uint64 // user and system time
	RSSBytes             int64
	Comm                 string
}

// Dead says that the process has ended and only waits to be reaped.
func (p Process) Dead() bool { return p.State == 'Z' || p.State == 'X' }

var pageSize = int64(os.Getpagesize())

// Processes lists all processes; those that end while it reads are left out.
func Processes() []Process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	processes := make([]Process, 0, len(names))
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			if process, ok := Read(pid); ok {
				processes = append(processes, process)
			}
		}
	}
	return processes
}

// Read reads one process; false when it does not exist.
func Read(pid int) (Process, bool) {
	data, err := os.ReadFile(path(pid, "stat"))
	if err != nil {
		return Process{}, false
	}
	return parseStat(pid, data)
}

// parseStat reads /proc/PID/stat. The command name may hold spaces and brackets, so the fields are
// counted from the last bracket.
func parseStat(pid int, data []byte) (Process, bool) {
	start, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if start < 0 || end < start {
		return Process{}, false
	}
	fields := strings.Fields(string(data[end+1:]))
	const lastNeeded = 21
	if len(fields) <= lastNeeded {
		return Process{}, false
	}
	number := func(i int) int { n, _ := strconv.Atoi(fields[i]); return n }
	long := func(i int) uint64 { n, _ := strconv.ParseUint(fields[i], 10, 64); return n }
	return Process{
		PID: pid, State: fields[0][0], PPID: number(1), PGID: number(2), SID: number(3),
		CPUTicks: long(11) + long(12), StartTime: long(19), RSSBytes: int64(long(lastNeeded)) * pageSize,
		Comm: string(data[start+1 : end]),
	}, true
}

// CommandLine is the command line with spaces between the arguments, at most limit bytes of it; the name
// in brackets for a process that has none.
func CommandLine(process Process, limit int) string {
	data, err := readHead(path(process.PID, "cmdline"), limit)
	if err != nil || len(data) == 0 {
		return "[" + process.Comm + "]"
	}
	return strings.TrimRight(strings.ReplaceAll(string(data), "\x00", " "), " ")
}

// maxEnviron bounds how much of an environment is searched.
const maxEnviron = 256 << 10

// HasEnviron says whether the process was started with this entry ("NAME=value") in its environment.
func HasEnviron(pid int, entry string) bool {
	data, err := readHead(path(pid, "environ"), maxEnviron)
	if err != nil {
		return false
	}
	for part := range bytes.SplitSeq(data, []byte{0}) {
		if string(part) == entry {
			return true
		}
	}
	return false
}

// HoldsPipe says whether the process has one of these pipes open; a pipe is named by its inode.
func HoldsPipe(pid int, inodes map[uint64]bool) bool {
	dir := path(pid, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue
		}
		if number, ok := strings.CutPrefix(target, "pipe:["); ok {
			inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
			if err == nil && inodes[inode] {
				return true
			}
		}
	}
	return false
}

func path(pid int, file string) string { return "/proc/" + strconv.Itoa(pid) + "/" + file }

// readHead reads at most limit bytes.
func readHead(name string, limit int) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data := make([]byte, limit)
	total := 0
	for total < limit {
		n, err := file.Read(data[total:])
		total += n
		if err != nil || n == 0 {
			break
		}
	}
	return data[:total], nil
}
