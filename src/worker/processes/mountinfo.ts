/**
 * Finds the mount points of folders. Sandboxes have their own mount namespaces, which outlive the worker that created
 * them. All mounts are therefore read from the kernel, and not from the worker's own records.
 */
import { readFile, readdir, readlink, realpath } from 'node:fs/promises'
import { relative } from 'node:path'

/** One line of mountinfo (proc(5)). */
export type MountInfo = {
  readonly id: string
  /** `major:minor` of the file system. */
  readonly device: string
  /** The path, within the file system, of the folder or file that is mounted. */
  readonly root: string
  readonly point: string
  readonly source: string
}

/** Parses a mountinfo file. A later mount covers an earlier one at the same point. */
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

/** Decodes the octal escapes in mountinfo, which stand for spaces and other special characters. */
function unescapeOctal(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 8)))
}

/** Reads the mounts that a process sees. Empty when the process has ended. */
export async function readMounts(pid: string): Promise<readonly MountInfo[]> {
  return parseMountinfo(await readOrEmpty(`/proc/${pid}/mountinfo`))
}

/** Finds the mount points, in all mount namespaces, at which the folder or a part of it is mounted. */
export async function findMountsOfFolder(folder: string): Promise<readonly string[]> {
  const { device, root } = await locate(folder)
  return await findMounts((mount) => mount.device === device && isWithin(mount.root, root))
}

/** Finds the mount points of the folder, of parts of it, and of the folders around it up to `top`. */
export async function findMountsAround(folder: string, top: string): Promise<readonly string[]> {
  const [{ device, root }, { root: topRoot }] = await Promise.all([locate(folder), locate(top)])
  const isAround = (around: string): boolean => isWithin(root, around) && isWithin(around, topRoot)
  return await findMounts((mount) => mount.device === device && (isWithin(mount.root, root) || isAround(mount.root)))
}

/** Returns the device of the file system that has a folder, and the folder's path in it. */
async function locate(folder: string): Promise<Pick<MountInfo, 'device' | 'root'>> {
  const path = await realpath(folder)
  const holder = (await readMounts('self'))
    .filter(({ point }) => isWithin(path, point))
    .reduce<MountInfo | null>(
      (best, mount) => (best === null || mount.point.length >= best.point.length ? mount : best),
      null,
    )
  if (holder === null) throw new Error(`${folder} is in no mount`)
  return { device: holder.device, root: joinRoot(holder.root, relative(holder.point, path)) }
}

async function findMounts(isFound: (mount: MountInfo) => boolean): Promise<readonly string[]> {
  return (await readMountsOfAllNamespaces()).filter(isFound).map(({ point }) => point)
}

/** Whether the file system mounted at `point` is mounted elsewhere too, in any mount namespace. */
export async function isMountedElsewhere(point: string): Promise<boolean> {
  const own = (await readMounts('self')).find((mount) => mount.point === point)
  if (own === undefined) return false
  // Mounts with the same root are copies of this mount in other mount namespaces, and don't count. Sandboxes mount only
  // parts of the file system, so their mounts have other roots.
  return (await readMountsOfAllNamespaces()).some((mount) => mount.device === own.device && mount.root !== own.root)
}

/** Reads the mounts of all mount namespaces, each once, although several processes may share a namespace. */
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
    return null // the process has ended, or belongs to another user and so to no sandbox of this worker
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

/** Formats a device number as the kernel does in its files: `7:12`. The layout is that of makedev(3). */
export function deviceName(device: number): string {
  const major = Math.floor(device / 256) & 0xfff
  const minor = (device & 0xff) + Math.floor(device / 0x10_0000) * 256
  return `${String(major)}:${String(minor)}`
}
