package importer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"

	"github.com/archdisk/archdisk/importer/archive"
	"github.com/archdisk/archdisk/platform"
	"github.com/archdisk/archdisk/qcow/disk"
)

// What a caller does about an error. Errors of [platform], [archive] and [disk] come
// through as well and keep their own sentinels.
var (
	// ErrDigest: bytes are not those that a digest names. The copy is damaged or forged.
	ErrDigest = errors.New("wrong content")
	// ErrBootc: the image is a bootable container, not a containerdisk. Build a disk of it.
	ErrBootc = errors.New("bootable container image, not a disk")
	// ErrEmptyDisk: the disk has no bytes.
	ErrEmptyDisk = errors.New("disk of size zero")
	// ErrTooLarge: the disk is larger than what was asked for or than the target.
	ErrTooLarge = errors.New("disk too large")
	// ErrDenied: a policy refuses the image.
	ErrDenied = errors.New("denied by policy")
	// ErrOptions: an option makes no sense. The caller is at fault, not the image.
	ErrOptions = errors.New("invalid options")
)

// Stage is a part of an import.
type Stage string

// The stages, in their order.
const (
	StageResolve Stage = "resolve" // the reference and the platform
	StagePolicy  Stage = "policy"
	StageFetch   Stage = "fetch"   // the bytes of a layer, and their digest
	StageUnpack  Stage = "unpack"  // compression, tar, the file in them
	StageProbe   Stage = "probe"   // the image format and its size
	StageConvert Stage = "convert" // decoding
	StageWrite   Stage = "write"   // to the target
	StageVerify  Stage = "verify"  // the finished disk
	StageCommit  Stage = "commit"
)

// Class says whether doing the same again may succeed.
type Class string

// The classes.
const (
	Transient Class = "transient"
	Permanent Class = "permanent"
)

// Error is a failed import. It unwraps to its Err and to its Cause.
type Error struct {
	Stage Stage
	Class Class
	Code  string // stable word for programs: "digest", "no-match", "backing-file", ...
	Err   error
	// Cause is an error found in the content of a blob that then proved to be the wrong
	// one: the digest's error comes first. nil otherwise.
	Cause error
}

func (e *Error) Error() string {
	s := string(e.Stage) + ": " + e.Err.Error()
	if e.Cause != nil {
		s += " (which is why: " + e.Cause.Error() + ")"
	}
	return s
}

// Unwrap returns Err and Cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// DigestError is content that differs from what its digest names. It unwraps to [ErrDigest].
type DigestError struct {
	What string // "decoded disk", "disk image file"; "" for a layer, which is named by its digest
	Want string
	Got  string
}

func (e *DigestError) Error() string {
	if e.What == "" {
		return fmt.Sprintf("%v: its digest is %s", ErrDigest, e.Got)
	}
	return fmt.Sprintf("%s: %v: digest is %s, not %s", e.What, ErrDigest, e.Got, e.Want)
}

// Unwrap returns [ErrDigest].
func (e *DigestError) Unwrap() error { return ErrDigest }

// SizeError is a blob of another length than its descriptor states. It unwraps to [ErrDigest].
type SizeError struct {
	Want, Got int64 // Got is a lower bound if it is larger
}

func (e *SizeError) Error() string {
	if e.Got > e.Want {
		return fmt.Sprintf("%v: more than the %d bytes that its descriptor states", ErrDigest, e.Want)
	}
	return fmt.Sprintf("%v: it ends after %d of %d bytes", ErrDigest, e.Got, e.Want)
}

// Unwrap returns [ErrDigest].
func (e *SizeError) Unwrap() error { return ErrDigest }

// TooLargeError says by how much a disk does not fit. It unwraps to [ErrTooLarge].
type TooLargeError struct {
	Need, Have int64 // bytes; Need is a lower bound where the size is not known yet
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%v: it needs %d bytes, %d are allowed", ErrTooLarge, e.Need, e.Have)
}

// Unwrap returns [ErrTooLarge].
func (e *TooLargeError) Unwrap() error { return ErrTooLarge }

// ClassOf says whether doing the same again may help after err: no answer from a network
// and a full disk pass, wrong content stays. nil and errors nobody knows are Permanent.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return classify(err)
}

// permanent says whether err is of a kind that stays as it is, whatever else is in its chain.
func permanent(err error) bool {
	for _, p := range []error{
		ErrDigest, ErrBootc, ErrEmptyDisk, ErrTooLarge, ErrDenied, ErrOptions,
		archive.ErrNoDisk, archive.ErrSeveral, archive.ErrNotAFile,
		disk.ErrCorrupt, disk.ErrTruncated, disk.ErrUnsupported, disk.ErrLimit, disk.ErrNeedsParking,
		platform.ErrNoMatch, platform.ErrInvalid, platform.ErrUnsupported, platform.ErrLimit, platform.ErrDigest,
		fs.ErrPermission, fs.ErrNotExist, syscall.EISDIR, syscall.EROFS, // a path that the caller gave
		syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.EINVAL, syscall.EFBIG,
	} {
		if errors.Is(err, p) {
			return true
		}
	}
	return false
}

func classify(err error) Class {
	if err == nil {
		return Permanent
	}
	if isContext(err) {
		return Transient
	}
	if permanent(err) {
		return Permanent
	}
	var temporary interface{ Temporary() bool }
	if errors.As(err, &temporary) {
		if temporary.Temporary() {
			return Transient
		}
		var errno syscall.Errno // its own idea of temporary is narrower than ours
		if !errors.As(err, &errno) {
			return Permanent
		}
	}
	var (
		network net.Error
		write   *disk.WriteError
		path    *fs.PathError
		errno   syscall.Errno
	)
	if errors.As(err, &network) || errors.As(err, &write) || errors.As(err, &path) || errors.As(err, &errno) {
		return Transient
	}
	return Permanent
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// code names an error for programs, by the most telling part of its chain.
func code(err error, stage Stage) string {
	if isContext(err) {
		return "cancelled"
	}
	var format *disk.FormatError
	if errors.As(err, &format) {
		return string(format.Reason)
	}
	var coded interface{ ErrorCode() string }
	if errors.As(err, &coded) {
		return coded.ErrorCode()
	}
	for _, c := range []struct {
		err  error
		code string
	}{
		{ErrOptions, "options"},
		{ErrDigest, "digest"}, {platform.ErrDigest, "digest"},
		{ErrBootc, "bootc"}, {ErrEmptyDisk, "empty-disk"}, {ErrTooLarge, "disk-too-large"}, {ErrDenied, "denied"},
		{archive.ErrNoDisk, "no-disk"}, {archive.ErrSeveral, "several-files"}, {archive.ErrNotAFile, "not-a-file"},
		{platform.ErrPlatformMismatch, "platform-mismatch"}, {platform.ErrNoMatch, "no-match"},
		{platform.ErrInvalid, "invalid-manifest"}, {platform.ErrUnsupported, "unsupported-manifest"},
		{platform.ErrLimit, "limit-exceeded"}, {disk.ErrLimit, "limit-exceeded"},
		{syscall.ENOSPC, "no-space"}, {syscall.EDQUOT, "no-space"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	var damaged *archive.Error
	if errors.As(err, &damaged) || errors.Is(err, tar.ErrHeader) || stage == StageUnpack && errors.Is(err, io.ErrUnexpectedEOF) {
		return "damaged-archive"
	}
	if errors.Is(err, disk.ErrUnsupported) {
		return "unsupported"
	}
	return string(stage)
}

// at gives err its stage, unless it has one.
func at(stage Stage, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	var write *disk.WriteError
	if errors.As(err, &write) {
		stage = StageWrite
	}
	return &Error{Stage: stage, Class: classify(err), Code: code(err, stage), Err: err}
}

// about puts what err is about before it, behind its stage if it has one.
func about(what string, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%s: %w", what, err)
	}
	same := *e
	same.Err = fmt.Errorf("%s: %w", what, e.Err)
	return &same
}

// because gives an error that only says that ctx, the run's, is done the reason why: the
// target failed, or the caller, whose context is parent, has cancelled.
func because(ctx, parent context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || !isContext(err) && !errors.Is(err, cause) {
		return err
	}
	var write *disk.WriteError
	switch {
	case errors.As(err, &write):
		return err
	case errors.As(cause, &write):
		return at(StageWrite, cause)
	case parent.Err() == nil || isContext(err) && errors.Is(err, cause):
		return err
	}
	stage := StageConvert
	var e *Error
	if errors.As(err, &e) {
		stage = e.Stage
	}
	return at(stage, fmt.Errorf("%w: %w", parent.Err(), cause))
}
