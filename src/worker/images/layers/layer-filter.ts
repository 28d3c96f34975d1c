import { StartError } from '../../start-error.ts'
import type { ImageLimits } from '../image.ts'
import type { LayerBudget } from '../image-budget.ts'
import { makeLayerPaths } from './layer-paths.ts'
import type { TarEntry, TarHeader } from './tar-streams.ts'

/**
 * Converts the untrusted entries of an image layer into entries that are safe to unpack as root. They are unpacked into
 * an empty folder that becomes a lower layer of an overlay. Every path stays inside that folder. Owners are shifted,
 * devices and extended attributes are dropped, and whiteouts become overlay whiteouts.
 *
 * Call `begin`, then `accept` for each entry in order, then `finish`. Write the returned entries in that order.
 */
export interface LayerFilter {
  begin(): readonly TarHeader[]
  /**
   * Converts an entry of the image's layer. Write the returned `parents` first, then the returned `entry` with the body
   * of the original. The returned `entry` is null when the original is dropped.
   */
  accept(entry: TarEntry): FilteredEntry
  finish(): readonly TarHeader[]
}

/** The entries to write for one original entry. */
type FilteredEntry = { readonly parents: readonly TarHeader[]; readonly entry: TarHeader | null }

type LayerFilterOptions = {
  /** Added to every owner and group, so that the sandboxes' user namespace shows the original ids of the image. */
  readonly uidShift: number
  readonly limits: ImageLimits
  readonly budget: LayerBudget
}

/** The number of ids that the user namespace maps. A sandbox could not show an owner with a higher id. */
const MAPPED_IDS = 65_536
// The names of whiteouts (OCI image specification, "Layer filesystem changeset").
const WHITEOUT = '.wh.'
const OPAQUE_WHITEOUT = '.wh..wh..opq'
/**
 * The prefix of names that aufs uses for its own data. Only `OPAQUE_WHITEOUT`, which also has this prefix, has a
 * meaning in an image.
 */
const AUFS_PREFIX = '.wh..wh.'
/**
 * The extended attribute of an opaque folder: one that hides the folder of the same name in lower layers (kernel,
 * Documentation/filesystems/overlayfs).
 */
const OPAQUE_PAX = { 'SCHILY.xattr.trusted.overlay.opaque': 'y' }
/**
 * The latest modification time to write. A ustar header stores times in 33 bits and would encode later or negative
 * times wrongly.
 */
const MAX_MTIME_MS = 0x7fff_ffff * 1000
/**
 * Added to each mode that is written. Without it, the tar library's `pack` treats a mode of 0 as missing and writes
 * 0644, which would make /etc/shadow readable.
 */
const MODE_IS_GIVEN = 0o100000

type Owners = { readonly uid: string; readonly gid: string }
type OwnedHeader = TarHeader & { readonly pax: Owners }
type Attributes = Pick<TarEntry, 'name' | 'mode' | 'uid' | 'gid' | 'mtimeMs' | 'pax'>

/** Makes the filter for one layer. */
export function makeLayerFilter({ uidShift, limits, budget }: LayerFilterOptions): LayerFilter {
  const paths = makeLayerPaths()
  const folders = new Map<string, OwnedHeader>()
  const whiteouts = new Set<string>()
  const opaque = new Set<string>()
  let nameBytes = 0

  function count(entry: TarEntry): void {
    budget.addFiles(1)
    nameBytes += entry.name.length + entry.linkname.length
    if (nameBytes > limits.nameBytesPerLayer)
      throw new StartError('image', 'the names in a layer are too long in total')
  }

  function shiftedOwner(id: number, paxId: string | undefined, name: string): string {
    const ownerId = paxId === undefined ? id : Number(paxId)
    if (Number.isInteger(ownerId) && ownerId >= 0 && ownerId < MAPPED_IDS) return String(ownerId + uidShift)
    throw new StartError(
      'image',
      `'${name}' in a layer is owned by id ${String(ownerId)}; sandboxes have the ids 0 to ${String(MAPPED_IDS - 1)}`,
    )
  }

  // Owners are written as PAX records, because the fixed header field ends at 262143.
  function headerOf(path: string, { name, mode, uid, gid, mtimeMs, pax }: Attributes): OwnedHeader {
    return {
      name: path === '' ? '.' : path,
      mode: MODE_IS_GIVEN | (mode & 0o7777),
      uid: 0,
      gid: 0,
      mtime: new Date(mtimeMs >= 0 && mtimeMs <= MAX_MTIME_MS ? mtimeMs : 0),
      pax: { uid: shiftedOwner(uid, pax['uid'], name), gid: shiftedOwner(gid, pax['gid'], name) },
    }
  }

  function addFolder(path: string, attributes: Attributes): TarHeader {
    const header: OwnedHeader = { ...headerOf(path, attributes), type: 'directory' }
    paths.addFolder(path)
    folders.set(path, header)
    return header
  }

  function addMissingParents(path: string): readonly TarHeader[] {
    const parents = paths.missingParents(path)
    budget.addFiles(parents.length)
    return parents.map((parent) => addFolder(parent, plainAttributes(parent, 0o755)))
  }

  function acceptWhiteout(path: string): FilteredEntry {
    const slash = path.lastIndexOf('/')
    const parent = slash < 0 ? '' : path.slice(0, slash)
    const name = path.slice(slash + 1)
    const parents = addMissingParents(path)
    if (name === OPAQUE_WHITEOUT) {
      if (parent === '')
        throw new StartError(
          'image',
          'a layer hides the whole root of the layers beneath it, which an overlay does not support',
        )
      opaque.add(parent)
    } else if (!name.startsWith(AUFS_PREFIX)) {
      const hidden = name.slice(WHITEOUT.length)
      if (hidden === '' || hidden === '.' || hidden === '..') {
        throw new StartError('image', `a layer has the invalid whiteout '${path}'`)
      }
      whiteouts.add(parent === '' ? hidden : `${parent}/${hidden}`)
    }
    return { parents, entry: null }
  }

  /**
   * Adds an entry to the known paths of the layer. Returns the header fields that depend on its type, or null when the
   * entry is dropped.
   */
  function specificHeader(entry: TarEntry, path: string): Partial<TarHeader> | null {
    switch (entry.type) {
      case 'file':
      case 'contiguous-file':
        paths.addOther(path)
        return { type: 'file', size: entry.sizeBytes }
      case 'fifo':
        paths.addOther(path)
        return { type: 'fifo' }
      case 'symlink':
        paths.addSymlink(path, entry.linkname)
        return { type: 'symlink', linkname: entry.linkname }
      case 'link': {
        const linkname = paths.resolve(entry.linkname)
        paths.addHardLink(path, linkname)
        return { type: 'link', linkname }
      }
      case 'character-device':
      case 'block-device':
        return null // the runtime creates the few devices that a sandbox may have
      case 'directory': // not reached, because `accept` handles folders
      case null:
        throw new StartError('image', `'${entry.name}' in a layer has an unsupported type`)
    }
  }

  return {
    begin: () => [addFolder('', plainAttributes('/', 0o755))],

    accept(entry) {
      count(entry)
      const path = paths.resolve(entry.name)
      if (path.slice(path.lastIndexOf('/') + 1).startsWith(WHITEOUT)) return acceptWhiteout(path)
      if (Object.keys(entry.pax).some((key) => key.startsWith('GNU.sparse.'))) {
        throw new StartError('image', `'${entry.name}' in a layer is a sparse file, which is unsupported`)
      }
      const parents = addMissingParents(path)
      if (entry.type === 'directory') return { parents, entry: addFolder(path, entry) }
      const own = specificHeader(entry, path)
      return { parents, entry: own === null ? null : { ...headerOf(path, entry), ...own } }
    },

    // Whiteouts come last. They hide only lower layers, so an entry of this layer with the same name stays.
    finish() {
      const hidden: TarHeader[] = []
      for (const path of whiteouts) {
        if (folders.has(path)) opaque.add(path)
        else if (!paths.has(path)) {
          hidden.push({
            ...headerOf(path, plainAttributes(path, 0)),
            type: 'character-device',
            devmajor: 0,
            devminor: 0,
          })
        }
      }
      const marked = [...opaque].flatMap((path) => {
        const header = folders.get(path)
        return header === undefined ? [] : [{ ...header, pax: { ...header.pax, ...OPAQUE_PAX } }]
      })
      return [...hidden, ...marked]
    },
  }
}

function plainAttributes(name: string, mode: number): Attributes {
  return { name, mode, uid: 0, gid: 0, mtimeMs: 0, pax: {} }
}
