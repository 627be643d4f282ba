// Package platform chooses, from an image index (manifest list) and the platform asked
// for, the one image manifest to use, and lists what an index offers. It does no I/O: the
// caller brings the root document and a [Fetch] for the others.
//
//	want, err := platform.ParseWant("aarch64") // or "arm64/v9", "linux/s390x", ""
//	...
//	sel, err := platform.Select(ctx, root, raw, fetch, platform.SelectOptions{Want: want})
//	var none *platform.NoMatchError
//	if errors.As(err, &none) {
//		return fmt.Errorf("pick one of %v", none.Have)
//	}
//	...
//	sel.Descriptor, sel.Manifest.Layers, sel.Notes
//
// The choice is made for virtual machine disks, where a wrong architecture is not seen
// before the machine fails to boot. So the architecture is asked for or is the only one
// offered; it is never taken from the host, never defaults to amd64, and is never
// replaced by a compatible one. OCI and Docker documents are treated alike.
//
// # How an image is chosen
//
//	 step             what happens
//	 1 want           os: linux unless asked. No architecture asked: the only one offered
//	                  (its variants count as one), else an error with the choices.
//	 2 spelling       x86_64 = amd64, aarch64 = arm64, i386 = 386; arm64 = arm64/v8 = arm64/8
//	                  = arm64/armv8; amd64 = amd64/v1; case is nothing. Empty or "unknown"
//	                  means not stated.
//	 3 left out       unread: entries with annotation vnd.docker.reference.type, for
//	                  unknown/unknown, with an artifactType that is no disk's, of a type that
//	                  is neither index nor manifest. Read: those whose manifest is an artifact's.
//	 4 nesting        nested indexes are read whole; entries without a platform inherit the
//	                  one of the index around them. All leaves are ranked together.
//	 5 not stated     entries whose os or architecture is not stated: their configs fill it in,
//	                  all of them being read. What then still states no architecture matches no
//	                  architecture asked; not asked, it is taken if it is all there is.
//	 6 architecture   the wanted one, exactly. amd64 does not take 386, arm64 does not take arm.
//	 7 variant        the wanted one; else the closest below it (amd64/v3 takes v2, then v1;
//	                  arm64/v9 takes v8.5, then v8); else one that may need more, if all of
//	                  the architecture are of that variant (a note; with Strict an error).
//	 8 then           entries that state an os before those that do not, entries without
//	                  os.features before those with. os.version is ignored.
//	 9 ties           the configs are read: one that agrees with its descriptor, then one that
//	                  says nothing, then one that disagrees (kubevirt#10881, #11702); then zstd
//	                  before gzip (or after, PreferGzip); then a platform stated by the index
//	                  before one from a config; then the first in the index, with a note.
//	10 disagreement   the config of the chosen image states another os or architecture: the
//	                  index decides, with a note; with Strict a [*MismatchError]. Disks
//	                  built `FROM scratch` on amd64 and annotated arm64 are common and right.
//	11 no index       a single manifest whose config states another platform than asked is a
//	                  [*MismatchError]; one that states none (kubevirt/containerdisks before
//	                  2022) is taken, with a note. Nothing asked: taken as it is.
//
// What the result depends on is the set of entries; their order matters in the last part
// of step 9 only.
//
// # What is refused
//
// Docker schema 1 manifests ([ErrUnsupported]). Documents that two readers could
// understand differently ([ErrInvalid]): members of both an index and a manifest, a media
// type that contradicts the descriptor (CVE-2021-41190), a member given twice or in another
// case. Bytes that are not those a descriptor names ([ErrDigest]). An image past [Limits]
// ([ErrLimit]): every document, their sum, the nesting and the number of entries is bounded.
//
// Not supported: choosing by os.version or os.features, OCI artifact manifests, and
// Windows host matching.
//
// Documents and descriptors may be hostile: any bytes give a result or an error, within the
// limits and without a panic. Their strings appear in errors and notes quoted and cut;
// [Format] does the same for a platform. Raw strings are in the exported fields.
//
// Spec: OCI image-spec, image-index.md and manifest.md; Docker image manifest v2 schema 2.
package platform
