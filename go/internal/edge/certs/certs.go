// Package certs serves TLS certificates from files and takes changes to the files without a restart.
package certs

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"
)

// checkEvery bounds how often the files are looked at; a look is one stat per file, done by a handshake.
const checkEvery = time.Second

// Pair names the PEM files of a certificate chain and its key.
type Pair struct{ Cert, Key string }

// Store holds the certificates of one or more pairs.
type Store struct {
	pairs []Pair
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	checked time.Time
	stamps  []stamp
	certs   []*tls.Certificate
}

// stamp changes when a file does; a rename over the file changes the inode's time and size, which is enough.
type stamp struct {
	modified time.Time
	size     int64
}

// Load reads every pair; a file that is missing or does not fit is an error.
func Load(pairs []Pair, log *slog.Logger, now func() time.Time) (*Store, error) {
	if len(pairs) == 0 {
		return nil, errors.New("no certificate given")
	}
	s := &Store{pairs: pairs, log: log, now: now}
	s.stamps = s.look()
	certs, err := s.read()
	if err != nil {
		return nil, err
	}
	s.certs, s.checked = certs, now()
	return s, nil
}

// Config returns a TLS configuration that always uses the newest certificates.
func (s *Store) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.certificate}
}

// Reload reads the files now. On an error the certificates in use stay.
func (s *Store) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reload(s.look())
}

func (s *Store) reload(stamps []stamp) error {
	// Remembered even when reading fails, so that a broken file is reported once and not at every handshake.
	s.stamps = stamps
	certs, err := s.read()
	if err != nil {
		return err
	}
	s.certs = certs
	return nil
}

func (s *Store) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	for _, cert := range s.current() {
		if hello.SupportsCertificate(cert) == nil {
			return cert, nil
		}
	}
	return s.current()[0], nil
}

func (s *Store) current() []*tls.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Sub(s.checked) >= checkEvery {
		s.checked = now
		if stamps := s.look(); changed(s.stamps, stamps) {
			if err := s.reload(stamps); err != nil {
				s.log.Error("certificates changed but cannot be used; the old ones stay", "error", err.Error())
			} else {
				s.log.Info("certificates reloaded")
			}
		}
	}
	return s.certs
}

func (s *Store) read() ([]*tls.Certificate, error) {
	certs := make([]*tls.Certificate, 0, len(s.pairs))
	for _, pair := range s.pairs {
		cert, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			return nil, err
		}
		certs = append(certs, &cert)
	}
	return certs, nil
}

func (s *Store) look() []stamp {
	stamps := make([]stamp, 0, 2*len(s.pairs))
	for _, pair := range s.pairs {
		for _, name := range []string{pair.Cert, pair.Key} {
			var st stamp
			if info, err := os.Stat(name); err == nil {
				st = stamp{modified: info.ModTime(), size: info.Size()}
			}
			stamps = append(stamps, st)
		}
	}
	return stamps
}

func changed(old, new []stamp) bool {
	for i := range old {
		if !old[i].modified.Equal(new[i].modified) || old[i].size != new[i].size {
			return true
		}
	}
	return false
}
