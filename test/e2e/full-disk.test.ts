import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { statfsSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { call, mustCall, type SandboxBody } from '../support/api.ts'
import { noteFault } from '../support/reliability.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { mountSmallDisk, whyNoSmallDisk, type SmallDisk } from '../support/small-disk.ts'
import { whyNoVolumePool } from '../../src/worker/volumes/open-volume-storage.ts'
import { waitUntil } from '../support/wait.ts'

// A real server with containers, whose data folder is on a small disk. A sandbox fills its disk and a volume, then another
// program fills the rest. The way out is the public API alone.

const LIMIT_MS = 60_000
const MIB = 1024 * 1024
const RESERVE_MIB = 100
/** What file systems in files need for themselves when they are full. */
const METADATA_MIB = 10
const WRITE_FOR_EVER =
  'while :; do dd if=/dev/zero bs=1M count=64 >> /root/fill; dd if=/dev/zero bs=1M count=64 >> /data/fill; sleep 0.1; done'

describe(
  'a full disk with containers',
  { skip: whyNoServer() || whyNoSmallDisk() || ((await whyNoVolumePool()) ?? false) },
  () => {
    let disk: SmallDisk
    let server: RealServer
    before(async () => {
      disk = mountSmallDisk(1_000)
      const folder = process.env['TMPDIR']
      process.env['TMPDIR'] = disk.folder
      try {
        server = await startServer({
          SANDYARD_DISK_RESERVE_MIB: String(RESERVE_MIB),
          SANDYARD_BALLAST_MIB: '48',
          SANDYARD_VOLUME_POOL_GIB: '1',
          SANDYARD_DISK_MIB: '1024',
        })
      } finally {
        if (folder === undefined) delete process.env['TMPDIR']
        else process.env['TMPDIR'] = folder
      }
    })
    after(async () => {
      await server.close()
      disk.remove()
    })

    test('a sandbox that writes for ever gets ENOSPC at the reserve; others run on, and new ones wait with the reason', async () => {
      const volume = await mustCall(server, 'create_volume', { body: { name: 'files' } })
      const databaseBeforeMib = databaseMib()
      await until((await create('quiet')).id, 'running')
      const mounts = [{ type: 'named', name: volume.name, guest: '/data' }]
      const hog = await create('hog', { mounts, runtime: { cmd: ['sh', '-c', WRITE_FOR_EVER] } })
      await until(hog.id, 'running')
      await waitUntil(async () => (await eventTypes()).includes('worker_disk_short'), LIMIT_MS)
      // The reserve is for the database: a new segment of its log takes 16 MiB at once.
      const leftMib = freeMib() + Math.max(0, databaseMib() - databaseBeforeMib)
      assert.ok(leftMib > RESERVE_MIB - METADATA_MIB, `only ${String(leftMib)} MiB are free`)
      assert.equal((await fetch(`${server.url}/readyz`)).status, 200)
      assert.equal((await byName('quiet')).status, 'running')
      const late = await create('late')
      await waitUntil(async () => (await read(late.id)).status_reason === 'insufficient_capacity', LIMIT_MS)
      const [missing] = (await read(late.id)).status_details?.missing ?? []
      assert.match(missing?.accepted ?? '', /its disk is full up to SANDYARD_DISK_RESERVE_MIB/)
      assert.equal((await read(hog.id)).status, 'running')
      noteFault({
        area: 'data',
        fault: 'a sandbox writes to its disk and to a volume for ever',
        injected: 1,
        checked:
          'its writes fail before the reserve; the API and other sandboxes run on; a new sandbox waits with the reason',
        found: `${String(Math.round(leftMib))} MiB of the reserve of ${String(RESERVE_MIB)} MiB were left to the database`,
      })
    })

    test('when the rest of the disk is filled too, the writer is stopped, starts are refused, and deletions free the space', async () => {
      const hog = await byName('hog')
      disk.fill()
      await until(hog.id, 'failed')
      assert.match(
        (await read(hog.id)).last_failure_message ?? '',
        /^the machine's disk is full: the sandbox was stopped/,
      )
      assert.equal((await byName('quiet')).status, 'running')
      await waitUntil(async () => (await fetch(`${server.url}/readyz`)).status === 503, LIMIT_MS)
      await mustCall(server, 'start_sandbox', { params: { sandbox_id: hog.id } })
      const refusal = /^the sandbox was not started: the worker's disk is full up to the reserve/
      await waitUntil(async () => refusal.test((await read(hog.id)).last_failure_message ?? ''), LIMIT_MS)

      await waitUntil(
        async () => (await call(server, 'delete_sandbox', { params: { sandbox_id: hog.id } })).status !== 503,
        LIMIT_MS,
      )
      const { id } = (await mustCall(server, 'list_volumes', {})).find(({ name }) => name === 'files') ?? {
        id: '',
      }
      await mustCall(server, 'remove_volume_file', {
        params: { id },
        headers: {
          'x-msb-file-path': Buffer.from('fill').toString('base64url'),
          'x-msb-file-recursive': 'false',
        },
      })
      await waitUntil(async () => (await fetch(`${server.url}/readyz`)).status === 200, LIMIT_MS)
      await waitUntil(async () => (await byName('late')).status === 'running', LIMIT_MS)
      assert.ok((await eventTypes()).includes('worker_disk_freed'))
      noteFault({
        area: 'data',
        fault: "the disk of a worker and of its server's database is filled to the last byte",
        injected: 1,
        checked:
          'the largest writer is stopped with the reason, and no other; starts are refused; deletions through the API end it',
        found: 'every step held; a waiting sandbox ran after the deletions',
      })
    })

    async function create(name: string, more: Readonly<Record<string, unknown>> = {}): Promise<SandboxBody> {
      const body = { name, image: 'localhost/demo', resources: { vcpus: 1, memory_mib: 64 }, ...more }
      return mustCall(server, 'create_sandbox', { query: { start: 'true' }, body })
    }
    const read = (id: string): Promise<SandboxBody> => mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })
    const byName = (name: string): Promise<SandboxBody> => mustCall(server, 'get_sandbox_by_name', { params: { name } })
    async function until(id: string, status: string): Promise<void> {
      await waitUntil(async () => (await read(id)).status === status, LIMIT_MS)
    }
    async function eventTypes(): Promise<readonly string[]> {
      return (await mustCall(server, 'list_events', {})).data.map(({ event_type }) => event_type)
    }
    function databaseMib(): number {
      // Files disappear meanwhile, so the exit code says nothing.
      const { stdout } = spawnSync('du', ['-sm', join(server.dataDir, 'database')], { encoding: 'utf8' })
      const mib = Number.parseInt(stdout, 10)
      assert.ok(mib > 0, `du printed ${stdout}`)
      return mib
    }
    function freeMib(): number {
      const { bavail, bsize } = statfsSync(disk.folder)
      return (bavail * bsize) / MIB
    }
  },
)
