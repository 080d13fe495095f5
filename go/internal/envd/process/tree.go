package process

import (
	"log/slog"
	"os"
	"syscall"
	"time"

	"forkyard.dev/forkyard/internal/envd/procfs"
)

const (
	// killPatience bounds how long one kill goes on against a tree that keeps growing.
	killPatience = 10 * time.Second
	freezeRounds = 5
)

// members finds the living processes that descend from p. Parents alone do not tell: a child whose parent
// has died belongs to PID 1. So a process also counts that is in the session of a member, that was
// started with the command's marker in its environment, or that holds one of its output pipes open
// (which finds what sudo has started, with a clean environment).
func (p *Process) members() []int {
	all := procfs.Processes()
	own, ownSession := os.Getpid(), sessionOf(all, os.Getpid())
	included := map[int]bool{}
	sessions := map[int]bool{p.PID: true}
	include := func(process procfs.Process) {
		included[process.PID] = true
		if process.SID > 0 && process.SID != ownSession {
			sessions[process.SID] = true
		}
	}
	eligible := func(process procfs.Process) bool {
		return process.PID != own && process.PID != 1 && !included[process.PID] && !process.Dead()
	}
	for _, process := range all {
		if eligible(process) && (process.PID == p.PID && !p.hasExited() ||
			procfs.HasEnviron(process.PID, p.marker) || procfs.HoldsPipe(process.PID, p.ends.pipeInodes)) {
			include(process)
		}
	}
	for grown := true; grown; {
		grown = false
		for _, process := range all {
			if eligible(process) && (included[process.PPID] || sessions[process.SID]) {
				include(process)
				grown = true
			}
		}
	}
	pids := make([]int, 0, len(included))
	for pid := range included {
		pids = append(pids, pid)
	}
	return pids
}

func sessionOf(all []procfs.Process, pid int) int {
	for _, process := range all {
		if process.PID == pid {
			return process.SID
		}
	}
	return 0
}

func (p *Process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// SignalTree sends a signal to every member once.
func (p *Process) SignalTree(signal syscall.Signal) {
	for _, pid := range p.members() {
		_ = syscall.Kill(pid, signal)
	}
}

// KillTree kills the command and all its descendants, and returns when none is left, or at once if another
// call is at it. The output still to be handed on may end later: see Done. The tree is stopped before it is killed: a member that is killed while its children run would leave them without a parent
// to be found by.
func (p *Process) KillTree() {
	p.mu.Lock()
	again := p.killing
	p.killing = true
	p.mu.Unlock()
	if again {
		return
	}
	limit := time.Now().Add(killPatience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		members := p.freeze()
		if len(members) == 0 {
			break
		}
		for pid := range members {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(limit) {
			slog.Error("a process tree could not be killed", "pid", p.PID, "left", len(members))
			break
		}
		time.Sleep(pause) // until the kernel has ended them; /proc has no event for it
	}
	p.interruptPumps(0, true)
	p.mu.Lock()
	p.killing = false
	p.mu.Unlock()
}

// freeze stops the members until no new ones turn up.
func (p *Process) freeze() map[int]bool {
	stopped := map[int]bool{}
	for range freezeRounds {
		grown := false
		for _, pid := range p.members() {
			if !stopped[pid] {
				stopped[pid], grown = true, true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if !grown {
			break
		}
	}
	return stopped
}
