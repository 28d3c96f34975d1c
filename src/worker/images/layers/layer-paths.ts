import { StartError } from '../../start-error.ts'

/**
 * A map of the paths in one layer, kept in memory while the layer is unpacked. It resolves each entry's name to a path
 * within the layer's root. Symlinks of the same layer are followed as after chroot(2), so no path leads out of the
 * root. Paths are relative to the root, without `.`, `..` or empty parts. The root is the empty string.
 *
 * Invariant: a folder is never replaced. Therefore no parent of a known folder is a symlink.
 */
interface LayerPaths {
  /**
   * Returns the path of an entry with this name. Throws `StartError('image')` for `..`, symlink loops and names that
   * are too long, also by symlinks.
   */
  resolve(name: string): string
  /** Returns the missing parent folders of `path`, the highest first. */
  missingParents(path: string): readonly string[]
  has(path: string): boolean
  addFolder(path: string): void
  addOther(path: string): void
  /** Adds a symlink. Throws for an empty target, and for one of more than 4,096 bytes. */
  addSymlink(path: string, target: string): void
  /** Adds a hard link. Throws when the target is missing in this layer, or is a folder. */
  addHardLink(path: string, target: string): void
}

type Node = { readonly kind: 'folder' | 'other' } | { readonly kind: 'symlink'; readonly target: string }

// Linux's PATH_MAX and NAME_MAX, and its limit on symlinks in one path (path_resolution(7)).
const MAX_PATH_BYTES = 4096
const MAX_NAME_BYTES = 255
const MAX_SYMLINKS = 40
/**
 * How many parts of paths may be followed in a layer at once, and how many each name adds to what is left. A name leads through few
 * parts, but with forty long symlinks it can lead through 80,000, and a layer of some KiB would block the worker by such names.
 */
const STEPS = { atOnce: 100_000, perName: 64 } as const

export function makeLayerPaths(): LayerPaths {
  const nodes = new Map<string, Node>([['', { kind: 'folder' }]])
  let stepsLeft: number = STEPS.atOnce

  function followParents(parts: readonly string[], name: string): string {
    const waiting = [...parts].reverse()
    let at: string[] = []
    let followed = 0
    for (let part = waiting.pop(); part !== undefined; part = waiting.pop()) {
      stepsLeft -= 1
      if (stepsLeft < 0) throw new StartError('image', 'the symlinks in a layer make its names too long in total')
      if (part === '' || part === '.') continue
      if (part === '..') {
        at.pop()
        continue
      }
      at.push(part)
      const node = nodes.get(at.join('/'))
      if (node?.kind === 'other')
        throw new StartError('image', `'${name}' in a layer has a parent that is not a folder`)
      if (node?.kind !== 'symlink') continue
      followed += 1
      if (followed > MAX_SYMLINKS) throw new StartError('image', `'${name}' in a layer leads through a symlink loop`)
      at.pop()
      if (node.target.startsWith('/')) at = []
      waiting.push(...node.target.split('/').reverse())
    }
    return at.join('/')
  }

  function replace(path: string, node: Node): void {
    if (nodes.get(path)?.kind === 'folder') {
      throw new StartError('image', `'${path}' is both a folder and something else in one layer`)
    }
    nodes.set(path, node)
  }

  return {
    resolve(name) {
      stepsLeft = Math.min(STEPS.atOnce, stepsLeft + STEPS.perName)
      const parts = name.split('/').filter((part) => part !== '' && part !== '.')
      if (parts.includes('..')) throw new StartError('image', `'${name}' in a layer leads out of the image`)
      if (name.includes('\0') || Buffer.byteLength(name) > MAX_PATH_BYTES)
        throw new StartError('image', 'a layer has an invalid name')
      if (parts.some((part) => Buffer.byteLength(part) > MAX_NAME_BYTES))
        throw new StartError('image', 'a layer has a name that is too long')
      const last = parts.pop()
      if (last === undefined) return ''
      const parent = parts.join('/')
      const real = nodes.get(parent)?.kind === 'folder' ? parent : followParents(parts, name)
      const path = real === '' ? last : `${real}/${last}`
      if (Buffer.byteLength(path) > MAX_PATH_BYTES) throw new StartError('image', 'a layer has an invalid name')
      return path
    },
    missingParents(path) {
      const missing: string[] = []
      for (let slash = path.lastIndexOf('/'); slash > 0; slash = path.lastIndexOf('/', slash - 1)) {
        const parent = path.slice(0, slash)
        if (nodes.get(parent)?.kind === 'folder') break
        missing.unshift(parent)
      }
      return missing
    },
    has: (path) => nodes.has(path),
    addFolder(path) {
      nodes.set(path, { kind: 'folder' })
    },
    addOther(path) {
      replace(path, { kind: 'other' })
    },
    addSymlink(path, target) {
      if (target === '') throw new StartError('image', `the symlink '${path}' in a layer has no target`)
      if (Buffer.byteLength(target) > MAX_PATH_BYTES)
        throw new StartError('image', `the symlink '${path}' in a layer has a target that is too long`)
      replace(path, { kind: 'symlink', target })
    },
    addHardLink(path, target) {
      const node = nodes.get(target)
      if (node === undefined || node.kind === 'folder') {
        throw new StartError(
          'image',
          `the hard link '${path}' in a layer points to '${target}', which is not a file of that layer`,
        )
      }
      replace(path, node)
    },
  }
}
