// Command edge is Forkyard's data-plane proxy on the public port; specs/edge.md is its contract.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"forkyard.dev/forkyard/internal/edge"
	"forkyard.dev/forkyard/internal/edge/certs"
	"forkyard.dev/forkyard/internal/edge/logs"
)

// version is set by the build with -ldflags "-X main.version=...".
var version = "0.1.0"

// Exit codes.
const (
	exitFailed = 1
	exitTaken  = 2
	exitUsage  = 64
)

// gcPercent trades memory for fewer collections: the live heap is a few megabytes.
const gcPercent = 400

// stringList is a flag that may be given several times.
type stringList []string

func (l *stringList) String() string { return strings.Join(*l, ",") }

// Set adds one value.
func (l *stringList) Set(value string) error {
	*l = append(*l, value)
	return nil
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "version" {
		fmt.Println(version)
		return
	}
	cfg, logPath, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fail(exitUsage, err)
	}
	if err := run(cfg, logPath); err != nil {
		if errors.Is(err, edge.ErrTaken) {
			fail(exitTaken, err)
		}
		fail(exitFailed, err)
	}
}

func fail(code int, err error) {
	fmt.Fprintf(os.Stderr, "edge: %v\n", err)
	os.Exit(code)
}

func parse(args []string, errOut io.Writer) (edge.Config, string, error) {
	cfg := edge.Config{Version: version}
	var domains, certFiles, keyFiles stringList
	var logPath string
	flags := flag.NewFlagSet("edge", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&cfg.Listen, "listen", ":3000", "address of the public port")
	flags.StringVar(&cfg.TLSListen, "tls-listen", "", "address of a second port for TLS; --listen then stays plain")
	flags.StringVar(&cfg.Control, "control", "", "path of the socket that the control plane calls")
	flags.StringVar(&cfg.API, "api", "", "path of the control plane's socket")
	flags.Var(&domains, "domain", "domain of sandbox host names; may be given several times")
	flags.Var(&certFiles, "tls-cert", "PEM file with a certificate chain; may be given several times, with as many --tls-key")
	flags.Var(&keyFiles, "tls-key", "PEM file with the key of a certificate")
	flags.StringVar(&logPath, "log", "", "file for JSON log lines; standard error if not given")
	if err := flags.Parse(args); err != nil {
		return cfg, "", err
	}
	switch {
	case flags.NArg() > 0:
		return cfg, "", fmt.Errorf("unknown argument %q", flags.Arg(0))
	case cfg.Control == "" || cfg.API == "":
		return cfg, "", errors.New("--control and --api are needed")
	case len(certFiles) != len(keyFiles):
		return cfg, "", errors.New("--tls-cert and --tls-key go together")
	case cfg.TLSListen != "" && len(certFiles) == 0:
		return cfg, "", errors.New("--tls-listen needs --tls-cert and --tls-key")
	}
	cfg.Domains = domains
	for i := range certFiles {
		cfg.Certs = append(cfg.Certs, certs.Pair{Cert: certFiles[i], Key: keyFiles[i]})
	}
	return cfg, logPath, nil
}

func run(cfg edge.Config, logPath string) error {
	// Whoever reads our standard error may die before us; writing to it must not kill us then.
	signal.Ignore(syscall.SIGPIPE)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	sink, err := logs.Open(logPath)
	if err != nil {
		return fmt.Errorf("log file: %w", err)
	}
	defer sink.Close()
	logger := sink.Logger()
	// The HTTP library reports what hostile servers send through the standard logger.
	log.SetFlags(0)
	log.SetOutput(libraryLog{sink})

	e, err := edge.Start(cfg, logger, sink.Dropped)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	go func() {
		for s := range signals {
			if s == syscall.SIGHUP {
				sink.Reopen()
				e.Reload()
				continue
			}
			logger.Info("signal received", "signal", s.String())
			e.Shutdown()
		}
	}()
	e.Wait()
	return nil
}

// libraryLog turns lines of the standard logger into JSON lines.
type libraryLog struct{ sink *logs.Sink }

func (l libraryLog) Write(line []byte) (int, error) {
	l.sink.Logger().Warn("library", "text", strings.TrimSpace(string(line)))
	return len(line), nil
}
