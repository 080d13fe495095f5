package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// BecomeSubreaper makes this process the parent of orphans below it.
func BecomeSubreaper() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// ReapStrangers reaps children that have ended and that nobody asked for (orphans that came to us as their
// subreaper). known tells which pids somebody else waits for.
func ReapStrangers(known func(pid int) bool) int {
	reaped := 0
	for _, pid := range children() {
		if known(pid) {
			continue
		}
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG, nil)
		if err == nil && info.Signo != 0 {
			reaped++
		}
	}
	return reaped
}

func children() []int {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	var pids []int
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // that thread has ended
		}
		for _, field := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// SetOOMScoreAdj makes a process more likely to be killed when memory runs out (lowering needs a capability that
// some hosts do not give). A process that has gone is no error.
func SetOOMScoreAdj(pid, score int) error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(score)), 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
