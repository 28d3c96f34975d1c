import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readdirSync } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { Registry } from 'prom-client'
import { lockBackups } from '../../../src/cli/worker/backup-leftovers.ts'
import { openDataFolder } from '../../../src/cli/server/data-folder.ts'
import { closeWorkerHost, openWorkerHost, type WorkerHost } from '../../../src/cli/worker/worker-host.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { whyNoVolumePool } from '../../../src/worker/volumes/open-volume-storage.ts'
import { takeVolumeSnapshots } from '../../../src/worker/volumes/volume-snapshots.ts'
import { makeBackupFolder, type BackupFolder } from '../../support/backup-folder.ts'
import { spawnProgram } from '../../support/server.ts'
import { newVolume } from '../../support/volume-storage.ts'
import { waitUntil } from '../../support/wait.ts'

const MIB = 1024 * 1024
const flaw = await whyNoVolumePool()

describe('a backup that is interrupted', () => {
  let made: BackupFolder
  before(async () => {
    made = await makeBackupFolder()
    // The command can't read this before it gets the signal.
    await made.addDisk('sandbox-1', randomBytes(256 * MIB))
  })
  after(() => made[Symbol.asyncDispose]())

  const links = (): string => join(made.dataDir, 'backup-links')
  const backups = (): readonly string[] => readdirSync(join(made.target, 'backups'))

  for (const name of ['SIGINT', 'SIGTERM'] as const)
    test(`by ${name} releases the disks that it holds, and leaves no backup`, async () => {
      const child = spawnProgram(['backup', made.target, '--data-dir', made.dataDir], {})
      let output = ''
      child.stderr?.setEncoding('utf8').on('data', (text: string) => (output += text))
      await waitUntil(() => output.includes('\ndisk sandbox-1'))
      assert.ok(existsSync(links()))
      child.kill(name)
      await once(child, 'close')
      assert.equal(child.exitCode, 1, output)
      assert.match(output, new RegExp(`stopped by ${name}`))
      assert.ok(!existsSync(links()))
      assert.deepEqual([backups(), existsSync(join(made.target, 'incoming'))], [[], false])
    })

  test('between two parts takes nothing more', async () => {
    const stop = new AbortController()
    const parts: string[] = []
    const onProgress = (text: string): void => {
      parts.push(text)
      if (text === 'disk sandbox-1') stop.abort(new Error('stopped here'))
    }
    await assert.rejects(made.backup({ onProgress, signal: stop.signal }), /stopped here/)
    assert.equal(parts.at(-1), 'disk sandbox-1')
    assert.ok(!existsSync(links()))
  })

  test('by kill -9 leaves links and snapshots, which a starting worker deletes unless another backup runs', async () => {
    const config = { ...made.config, driver: 'simulated' as const, volumePoolGib: 1 }
    const log = makeLog('silent')
    await rm(join(made.dataDir, 'worker.json'))
    const runWorker = async (use: (host: WorkerHost) => void | Promise<void>): Promise<void> => {
      const folder = await openDataFolder(made.dataDir, systemRandom, null)
      const host = await openWorkerHost({ config, folder, log }, { fencesItself: false, metrics: new Registry() })
      try {
        await use(host)
      } finally {
        await closeWorkerHost(config, host)
      }
    }
    const leftIn = ({ storage }: WorkerHost): readonly boolean[] => [
      existsSync(links()),
      existsSync(join(storage.root, 'backup')),
    ]
    await runWorker(async ({ storage }) => {
      await mkdir(join(links(), 'sandbox-1'), { recursive: true })
      await writeFile(join(links(), 'sandbox-1', 'disk.img'), 'deleted data')
      await storage.open(newVolume())
      if (flaw === null) await takeVolumeSnapshots(storage.root) // nobody disposes of them
    })
    {
      using _running = await lockBackups(made.dataDir)
      await runWorker((host) => assert.deepEqual(leftIn(host), [true, flaw === null]))
    }
    await runWorker((host) => assert.deepEqual(leftIn(host), [false, false]))
  })
})
