package filesystem

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/asuser"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/users"
	"forkyard.dev/forkyard/internal/envd/watch"
)

// watchRequest reads both spellings of a field, as protobuf's JSON mapping asks.
type watchRequest struct {
	Path          string `json:"path"`
	Recursive     bool   `json:"recursive"`
	IncludeEntry  bool   `json:"includeEntry"`
	IncludeEntry2 bool   `json:"include_entry"`
	AllowNetwork  bool   `json:"allowNetworkMounts"`
	AllowNetwork2 bool   `json:"allow_network_mounts"`
}

func (r *watchRequest) includeEntry() bool { return r.IncludeEntry || r.IncludeEntry2 }

// openWatcher checks that the user may read the directory, and watches it.
func (s *Service) openWatcher(r *http.Request, req *watchRequest) (*watch.Watcher, *eventMaker, error) {
	c, err := s.caller(r)
	if err != nil {
		return nil, nil, err
	}
	root, err := c.resolve(req.Path)
	if err != nil {
		return nil, nil, err
	}
	err = asuser.Run(c.user, func() error {
		dir, err := os.OpenFile(root, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		if info, err := dir.Stat(); err != nil {
			return err
		} else if !info.IsDir() {
			return connect.Errorf(connect.CodeInvalidArgument, "path is not a directory: %s", root)
		}
		if !req.AllowNetwork && !req.AllowNetwork2 && onNetwork(dir) {
			return connect.Errorf(connect.CodeInvalidArgument,
				"path %s is on a network filesystem mount, where changes are not reported reliably", root)
		}
		return nil
	})
	if err != nil {
		return nil, nil, coded(err)
	}
	watcher, err := s.Watchers.Open(root, req.Recursive)
	return watcher, &eventMaker{root: root, user: c.user, include: req.includeEntry()}, err
}

// onNetwork knows NFS, both generations of SMB, CIFS and FUSE by their magic numbers.
func onNetwork(dir *os.File) bool {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &stat); err != nil {
		return false
	}
	switch uint32(stat.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		return true
	default:
		return false
	}
}

type filesystemEvent struct {
	Name  string          `json:"name"`
	Type  watch.EventType `json:"type"`
	Entry *Entry          `json:"entry,omitempty"`
}

type watchResponse struct {
	Start      *connect.Empty   `json:"start,omitempty"`
	Filesystem *filesystemEvent `json:"filesystem,omitempty"`
	Keepalive  *connect.Empty   `json:"keepalive,omitempty"`
}

// eventMaker words events, with the entry of what still exists if that was asked for.
type eventMaker struct {
	root    string
	user    users.User
	include bool
}

func (m *eventMaker) all(events []watch.Event) []*filesystemEvent {
	made := make([]*filesystemEvent, len(events))
	for i, event := range events {
		made[i] = &filesystemEvent{Name: event.Path, Type: event.Type}
	}
	if !m.include || len(events) == 0 {
		return made
	}
	_ = asuser.Run(m.user, func() error {
		names := users.System.Names()
		for i, event := range events {
			if event.Type == watch.Remove || event.Type == watch.Rename {
				continue
			}
			if entry, err := Describe(filepath.Join(m.root, event.Path), names); err == nil {
				made[i].Entry = entry
			}
		}
		return nil
	})
	return made
}

func (s *Service) watchDir(ctx context.Context, r *http.Request, req *watchRequest, out *connect.Sender) error {
	watcher, maker, err := s.openWatcher(r, req)
	if err != nil {
		return err
	}
	defer s.Watchers.Drop(watcher)
	if err := out.Send(watchResponse{Start: &connect.Empty{}}); err != nil {
		return err
	}
	keepalive := connect.Keepalive(r.Header)
	idle := time.NewTimer(keepalive)
	defer idle.Stop()
	for {
		select {
		case <-watcher.Changed():
			events, err := watcher.Take()
			if err != nil {
				return err
			}
			for _, event := range maker.all(events) {
				if err := out.Send(watchResponse{Filesystem: event}); err != nil {
					return err
				}
			}
			idle.Reset(keepalive)
		case <-idle.C:
			if err := out.Send(watchResponse{Keepalive: &connect.Empty{}}); err != nil {
				return err
			}
			idle.Reset(keepalive)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type watcherIDResponse struct {
	WatcherID string `json:"watcherId"`
}

type watcherIDRequest struct {
	ID  string `json:"watcherId"`
	ID2 string `json:"watcher_id"`
}

func (r *watcherIDRequest) id() string {
	if r.ID != "" {
		return r.ID
	}
	return r.ID2
}

type eventsResponse struct {
	Events []*filesystemEvent `json:"events,omitempty"`
}

func (s *Service) createWatcher(_ context.Context, r *http.Request, req *watchRequest) (*watcherIDResponse, error) {
	watcher, maker, err := s.openWatcher(r, req)
	if err != nil {
		return nil, err
	}
	return &watcherIDResponse{WatcherID: s.Watchers.Name(watcher, maker)}, nil
}

func (s *Service) getWatcherEvents(_ context.Context, _ *http.Request, req *watcherIDRequest) (*eventsResponse, error) {
	named, ok := s.Watchers.Get(req.id())
	if !ok {
		return nil, connect.Errorf(connect.CodeNotFound, "watcher with id %s not found", req.id())
	}
	events, err := named.Watcher.Take()
	if err != nil {
		return nil, err
	}
	maker, _ := named.Owner.(*eventMaker)
	return &eventsResponse{Events: maker.all(events)}, nil
}

func (s *Service) removeWatcher(_ context.Context, _ *http.Request, req *watcherIDRequest) (*connect.Empty, error) {
	if !s.Watchers.Forget(req.id()) {
		return nil, connect.Errorf(connect.CodeNotFound, "watcher with id %s not found", req.id())
	}
	return &connect.Empty{}, nil
}
