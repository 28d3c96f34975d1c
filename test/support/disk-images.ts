import assert from 'node:assert/strict'
import {
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'
import { isInstalled, testRuntime, whyNoOci, type OciFixture } from './oci-driver.ts'

const MIB = 1024 * 1024
const COMMAND_TIMEOUT_MS = 20_000

/** Why sandboxes can't mount disk images on this machine. Null if they can. `programs` are what else a test needs. */
export function whyNoDiskImages(programs: readonly string[] = []): string | null {
  const missing = ['fuse2fs', ...programs].find((name) => !isInstalled(name))
  if (missing !== undefined) return `${missing} is not installed`
  return whyNoOci() ?? (testRuntime() === 'runsc' ? 'gVisor has file systems of its own' : null)
}

/** Makes an ext4 image of 16 MiB with these files on the default volume. It belongs to user 0 of sandboxes. */
export async function makeExt4(
  fixture: Pick<OciFixture, 'dir' | 'volume' | 'settings'>,
  host: string,
  files: Readonly<Record<string, string>> = {},
): Promise<string> {
  const image = join(fixture.volume, host)
  const folder = makeContent(fixture, files)
  mkdirSync(dirname(image), { recursive: true })
  rmSync(image, { force: true })
  writeFileSync(image, '')
  truncateSync(image, 16 * MIB)
  await runCommand('mkfs.ext4', ['-q', '-d', folder, image], { timeoutMs: COMMAND_TIMEOUT_MS })
  ownBySandboxes(fixture, host)
  return image
}

/** Makes a folder with these files. */
export function makeContent({ dir }: Pick<OciFixture, 'dir'>, files: Readonly<Record<string, string>>): string {
  const folder = join(dir, 'content')
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder)
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text)
  return folder
}

/** Gives a file of the default volume to user 0 of sandboxes. */
export function ownBySandboxes({ volume, settings }: Pick<OciFixture, 'volume' | 'settings'>, name: string): void {
  chownSync(join(volume, name), settings.uidShift, settings.uidShift)
}

/** Lists the host's process ids of the programs that serve a run's images. */
export function imageServersOf({ run_id }: { readonly run_id: string }): readonly number[] {
  const folders = ['/sys/fs/cgroup/pids', '/sys/fs/cgroup'].map((top) => join(top, 'sandyard'))
  const parent = folders.find((folder) => existsSync(folder)) ?? ''
  const own = readdirSync(parent).map((name) => join(parent, name, `${run_id}.commands`, 'cgroup.procs'))
  const pids = own.flatMap((path) => (existsSync(path) ? readFileSync(path, 'utf8').trim().split('\n') : []))
  assert.ok(pids.length > 0)
  return pids.map(Number)
}
