/**
 * Where a folder is mounted besides its own place: sandboxes have it in mount namespaces of their own, which outlive
 * the worker that made them, so only the kernel knows.
 */
import { readFile, readdir, readlink, realpath } from 'node:fs/promises'
import { relative } from 'node:path'

/** One line of mountinfo (proc(5)). */
export type MountInfo = {
  readonly id: string
  /** `major:minor` of the file system. */
  readonly device: string
  /** What of the file system is mounted. */
  readonly root: string
  readonly point: string
  readonly source: string
}

/** The mounts that a mountinfo file lists, in its order: a later one lies over an earlier one. */
export function parseMountinfo(text: string): readonly MountInfo[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [before = '', after = ''] = line.split(' - ')
      const [id = '', , device = '', root = '', point = ''] = before.split(' ').map(unescapeOctal)
      return { id, device, root, point, source: unescapeOctal(after.split(' ')[1] ?? '') }
    })
}

/** Blanks and the like are octal in mountinfo. */
function unescapeOctal(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 8)))
}

/** The mounts that a process sees; none when it has ended. */
export async function readMounts(pid: string): Promise<readonly MountInfo[]> {
  return parseMountinfo(await readOrEmpty(`/proc/${pid}/mountinfo`))
}

/** The mount points, in any mount namespace, that show the folder or a part of it. */
export async function mountPointsOf(folder: string): Promise<readonly string[]> {
  const path = await realpath(folder)
  const own = await readMounts('self')
  const holder = own
    .filter(({ point }) => isWithin(path, point))
    .reduce<MountInfo | null>(
      (best, mount) => (best === null || mount.point.length >= best.point.length ? mount : best),
      null,
    )
  if (holder === null) return []
  const root = joinRoot(holder.root, relative(holder.point, path))
  const found = (await readMountsOfAllNamespaces()).filter(
    (mount) => mount.device === holder.device && isWithin(mount.root, root),
  )
  return found.map(({ point }) => point)
}

/** Whether another mount than the one at `point` shows its file system, in any mount namespace. */
export async function isMountedElsewhere(point: string): Promise<boolean> {
  const own = (await readMounts('self')).find((mount) => mount.point === point)
  if (own === undefined) return false
  // A namespace that was copied has the mount itself once more; what sandboxes have are parts of it.
  return (await readMountsOfAllNamespaces()).some((mount) => mount.device === own.device && mount.root !== own.root)
}

/** The mounts of every mount namespace, each namespace read once. */
async function readMountsOfAllNamespaces(): Promise<readonly MountInfo[]> {
  const seen = new Set<string>()
  const mounts: MountInfo[] = []
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/.test(pid)) continue
    const namespace = await namespaceOf(pid)
    if (namespace === null || seen.has(namespace)) continue
    seen.add(namespace)
    mounts.push(...(await readMounts(pid)))
  }
  return mounts
}

async function namespaceOf(pid: string): Promise<string | null> {
  try {
    return await readlink(`/proc/${pid}/ns/mnt`)
  } catch {
    return null // it ended, or is another user's, whose sandboxes are none of this worker's
  }
}

async function readOrEmpty(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch {
    return '' // the process ended since it was listed
  }
}

function isWithin(path: string, folder: string): boolean {
  return path === folder || path.startsWith(folder.endsWith('/') ? folder : `${folder}/`)
}

function joinRoot(root: string, rest: string): string {
  return rest === '' ? root : `${root === '/' ? '' : root}/${rest}`
}
