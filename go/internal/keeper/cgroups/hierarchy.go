// Package cgroups keeps each sandbox's processes in a control group of its own, on cgroup v1 and v2 alike.
//
// runsc has code for this too, but it moves its whole process into the group to fork there, which a process that
// looks after many sandboxes cannot do. Controllers that the host does not have are left out and named.
package cgroups

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The controllers that limits need. Their names are the same in both versions, but for cpuacct (v1 only).
var wanted = []string{"memory", "cpu", "pids"}

// Hierarchy is where the host has its control groups.
type Hierarchy struct {
	version int
	v1      map[string]mount // by controller
	v2      string           // mount point of the unified hierarchy
	missing []string
}

type mount struct {
	point string // where it is mounted
	root  string // which part of the hierarchy is mounted there; "/" outside containers
}

// Detect looks for control groups in /proc/self/mountinfo. A host without any gives an empty Hierarchy, not an error.
func Detect() (*Hierarchy, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	h, err := parseMounts(file)
	if err != nil {
		return nil, err
	}
	if h.version == 2 {
		controllers, err := os.ReadFile(filepath.Join(h.v2, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("cgroup controllers: %w", err)
		}
		have := strings.Fields(string(controllers))
		for _, name := range wanted {
			if !slices.Contains(have, name) {
				h.missing = append(h.missing, name)
			}
		}
	}
	return h, nil
}

func parseMounts(r io.Reader) (*Hierarchy, error) {
	h := &Hierarchy{v1: map[string]mount{}}
	unified := ""
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		// ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPER_OPTIONS
		head, tail, ok := strings.Cut(scanner.Text(), " - ")
		fields, super := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 6 || len(super) < 3 {
			continue
		}
		switch super[0] {
		case "cgroup":
			for _, option := range strings.Split(super[2], ",") {
				if _, have := h.v1[option]; !have && (slices.Contains(wanted, option) || option == "cpuacct") {
					h.v1[option] = mount{point: fields[4], root: fields[3]}
				}
			}
		case "cgroup2":
			if unified == "" {
				unified = fields[4]
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	switch {
	case len(h.v1) > 0:
		// Version 1 has the controllers, even where an (empty) unified hierarchy is mounted beside it.
		h.version = 1
		for _, name := range wanted {
			if _, ok := h.v1[name]; !ok {
				h.missing = append(h.missing, name)
			}
		}
	case unified != "":
		h.version, h.v2 = 2, unified
	default:
		h.missing = slices.Clone(wanted)
	}
	return h, nil
}

// Version is 1, 2, or 0 for a host without control groups.
func (h *Hierarchy) Version() int { return h.version }

// Missing names the controllers that limits need and that the host does not have.
func (h *Hierarchy) Missing() []string { return slices.Clone(h.missing) }

// Group names a control group by its path from the root of every hierarchy; it need not exist.
func (h *Hierarchy) Group(path string) (*Group, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return nil, fmt.Errorf("%q is not an absolute, clean path below the root", path)
	}
	g := &Group{hierarchy: h, dirs: map[string]string{}}
	switch h.version {
	case 1:
		for name, m := range h.v1 {
			g.dirs[name] = filepath.Join(m.point, path)
		}
	case 2:
		g.dirs[unifiedKey] = filepath.Join(h.v2, path)
	}
	return g, nil
}

// home is the directory of the calling process's own group for each version 1 controller.
func (h *Hierarchy) home() (map[string]string, error) {
	// Not thread-self: a thread that entered a sandbox's group is to go back to where the process is.
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	home := map[string]string{}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, name := range strings.Split(parts[1], ",") {
			m, ok := h.v1[name]
			if !ok {
				continue
			}
			relative, err := filepath.Rel(m.root, parts[2])
			if err != nil || strings.HasPrefix(relative, "..") {
				relative = "." // seen from inside a container: the mounted part is all there is
			}
			home[name] = filepath.Join(m.point, relative)
		}
	}
	return home, nil
}

// write sets one file of a group, which must exist.
func write(dir, name, value string) error {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteString(value); err != nil {
		return fmt.Errorf("%s: writing %q: %w", file.Name(), value, err)
	}
	return nil
}
