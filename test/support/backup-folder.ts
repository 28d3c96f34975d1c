import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { makeBackup, type MadeBackup } from '../../src/cli/backup/make-backup.ts'
import { readConfig, type Config } from '../../src/config.ts'
import { makeLog } from '../../src/lib/log.ts'

/** A data folder of a worker without a database, and a target for its backups. */
export type BackupFolder = {
  readonly root: string
  readonly dataDir: string
  readonly target: string
  readonly config: Config
  /** Makes a backup, by default of everything into `target`. */
  backup(input?: Partial<Parameters<typeof makeBackup>[0]>): Promise<MadeBackup>
  /** Adds the disk of a stopped sandbox. */
  addDisk(id: string, bytes: Uint8Array): Promise<void>
} & AsyncDisposable

export async function makeBackupFolder(): Promise<BackupFolder> {
  const root = await mkdtemp(join(tmpdir(), 'sandyard-backup-'))
  const [dataDir, target] = [join(root, 'data'), join(root, 'backups')]
  await mkdir(dataDir)
  await writeFile(join(dataDir, 'worker.json'), '{}')
  const config = readConfig({ SANDYARD_DATA_DIR: dataDir }, {})
  return {
    root,
    dataDir,
    target,
    config,
    backup: (input) =>
      makeBackup({
        config,
        target,
        withImages: true,
        log: makeLog('silent'),
        onProgress: () => undefined,
        signal: new AbortController().signal,
        ...input,
      }),
    async addDisk(id, bytes) {
      const dir = join(dataDir, 'sandboxes', 'disks', 'kept', id)
      await mkdir(dir, { recursive: true })
      await writeFile(join(dir, 'disk.img'), bytes)
      for (const name of ['image.json', 'ready']) await writeFile(join(dir, name), '{}')
    },
    [Symbol.asyncDispose]: () => rm(root, { recursive: true, force: true }),
  }
}
