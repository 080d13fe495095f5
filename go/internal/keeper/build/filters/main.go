// Command filters writes gVisor's filter_precompiled.go with the seccomp programs in it.
//
//	filters FILE
//
// gVisor's own build generates that file; its Go module ships it empty, and every sandbox start then compiles the
// programs again (25 ms of CPU).
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
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
	programs = slices.DeleteFunc(programs, func(p precompiledseccomp.Program) bool { return !wanted(p.Name) })
	if len(programs) == 0 {
		return errors.New("none of gVisor's seccomp programs is for a platform that we use")
	}
	// In any order otherwise: the same source is to give the same binary, whose hash names the runtime.
	slices.SortFunc(programs, func(a, b precompiledseccomp.Program) int { return strings.Compare(a.Name, b.Name) })
	var out strings.Builder
	for _, program := range programs {
		// Where values are put in at run time stand the ones that it was compiled with, which differ from run to run.
		for _, offsets := range program.VarOffsets {
			for _, offset := range offsets {
				program.Bytecode32[offset] = 0
			}
		}
		out.WriteString(program.Registration("\t", "precompiledseccomp", "programs"))
	}
	patched := strings.Replace(string(text), anchor, out.String()+anchor, 1)
	patched = strings.Replace(patched,
		"const PrecompilationDisabledAtBuildTime = true", "const PrecompilationDisabledAtBuildTime = false", 1)
	return os.WriteFile(path, []byte(patched), 0o644)
}

// wanted tells whether the keeper can ever start a sandbox with the program of that name: on our platforms, without
// accelerators. runsc compiles others itself.
func wanted(name string) bool {
	ours := strings.Contains(name, `Platform="systrap"`) || strings.Contains(name, `Platform="kvm"`)
	return ours && strings.Contains(name, "NVProxy=false") && strings.Contains(name, "TPUProxy=false")
}
