// Command filters writes gVisor's filter_precompiled.go with the seccomp programs in it.
//
//	filters FILE
//
// gVisor's own build generates that file; its Go module ships it empty, and every sandbox start then compiles the
// programs again (25 ms of CPU).
package main

import (
	"fmt"
	"os"
	"strings"

	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// The place in the module's file where registrations belong.
const anchor = "\tprecompiledPrograms = programs\n"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: filters FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "filters: %v\n", err)
		os.Exit(1)
	}
}

func write(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), anchor); n != 1 {
		return fmt.Errorf("%s has the line for registrations %d times, not once", path, n)
	}
	programs, err := config.PrecompiledPrograms()
	if err != nil {
		return fmt.Errorf("compiling the seccomp programs: %w", err)
	}
	var out strings.Builder
	for _, program := range programs {
		out.WriteString(program.Registration("\t", "precompiledseccomp", "programs"))
	}
	patched := strings.Replace(string(text), anchor, out.String()+anchor, 1)
	patched = strings.Replace(patched,
		"const PrecompilationDisabledAtBuildTime = true", "const PrecompilationDisabledAtBuildTime = false", 1)
	return os.WriteFile(path, []byte(patched), 0o644)
}
