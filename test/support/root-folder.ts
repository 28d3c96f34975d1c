import { execFileSync } from 'node:child_process'
import { chmodSync, chownSync, cpSync, existsSync, mkdirSync, realpathSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

/**
 * The contents of a root file system. `tools` are programs in `/usr/bin` of this machine; missing ones are left out.
 */
export type RootFolder = {
  readonly tools: readonly string[]
  readonly folders: readonly string[]
  /** Lines of `/etc/group` in addition to root's. */
  readonly groups: readonly string[]
  /** The id of the host user to which user 0 of the sandbox is mapped. */
  readonly uidShift: number
}

/** Creates a root file system from this machine's own programs and their libraries, with the users root and alice. */
export function buildRootFolder(root: string, { tools, folders, groups, uidShift }: RootFolder): void {
  for (const folder of folders) mkdirSync(join(root, folder), { recursive: true })
  for (const tool of tools.map((name) => join('/usr/bin', name)).filter((path) => existsSync(path)))
    for (const file of [tool, ...librariesOf(tool)]) copyInto(root, file)
  symlinkSync('usr/bin', join(root, 'bin'))
  symlinkSync('dash', join(root, 'usr/bin/sh'))
  const users = ['root:x:0:0:root:/root:/bin/sh', 'alice:x:1000:1000:Alice:/home/alice:/bin/sh']
  writeFileSync(join(root, 'etc/passwd'), `${users.join('\n')}\n`)
  writeFileSync(join(root, 'etc/group'), `${['root:x:0:', 'alice:x:1000:', ...groups].join('\n')}\n`)
  execFileSync('chown', ['-R', '-h', `${String(uidShift)}:${String(uidShift)}`, root])
  chownSync(join(root, 'home/alice'), uidShift + 1000, uidShift + 1000)
  chmodSync(join(root, 'tmp'), 0o1777)
}

function copyInto(root: string, file: string): void {
  const to = join(root, file)
  if (existsSync(to)) return
  mkdirSync(dirname(to), { recursive: true })
  cpSync(realpathSync(file), to)
}

function librariesOf(file: string): readonly string[] {
  let listing = ''
  try {
    listing = execFileSync('ldd', [file], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
  } catch {
    return [] // a static program has no libraries
  }
  return [...listing.matchAll(/(\/\S+\.so[.\d]*)/g)].map((match) => match[1] ?? '')
}
