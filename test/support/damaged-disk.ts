import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** A mounted file system with the file `unreadable`, whose blocks the disk doesn't have. Reading it fails with EIO. */
export type DamagedDisk = { readonly folder: string; remove(): void }

const SIZE = 16 * 1024 * 1024
const MARK = 'the first bytes of a file on a damaged disk'

/** Makes and mounts a damaged disk. Always `remove` it. Throws where no file system in a file can be mounted. */
export function mountDamagedDisk(): DamagedDisk {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-damaged-'))
  const [image, folder] = [join(dir, 'image'), join(dir, 'mounted')]
  const run = (program: string, ...args: readonly string[]): void => {
    execFileSync(program, args, { stdio: ['ignore', 'ignore', 'pipe'] })
  }
  const mount = (): void => run('mount', '-o', 'loop', image, folder)
  try {
    mkdirSync(folder)
    writeFileSync(image, '')
    truncateSync(image, SIZE)
    run('mkfs.ext4', '-q', '-m', '0', '-O', '^has_journal', image)
    mount()
    writeFileSync(join(folder, 'unreadable'), MARK.padEnd(100_000, '.'), { flush: true })
    run('umount', folder)
    const damageFrom = readFileSync(image).indexOf(MARK)
    mount()
    truncateSync(image, damageFrom)
  } catch (error) {
    rmSync(dir, { recursive: true, force: true })
    throw error
  }
  return {
    folder,
    remove() {
      run('umount', folder)
      rmSync(dir, { recursive: true })
    },
  }
}
