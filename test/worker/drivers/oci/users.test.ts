import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import { SANDBOX_IDS } from '../../../../src/domain/workers/id-range.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import type { OciSettings } from '../../../../src/worker/drivers/oci/context.ts'
import type { OciRunRecord } from '../../../../src/worker/drivers/oci/run/run-records.ts'
import { folderHash } from '../../../support/folder-hash.ts'
import { commandLineOf } from '../../../../src/worker/processes/process-identity.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { waitUntil } from '../../../support/wait.ts'

const NEVER = new AbortController().signal
/** gVisor creates the user namespaces of its sandboxes itself. */
const joins = { skip: testRuntime() === 'runsc' ? 'gVisor creates its own user namespaces' : false }
/** A file system whose mounts can't be idmapped. */
const UNMAPPABLE = '/proc'
const MOUNT = {
  type: 'bind',
  host: '/',
  guest: '/shared',
  quota_mib: null,
  options: { readonly: false, noexec: false, nosuid: true, nodev: true },
  stat_virtualization: 'strict',
  host_permissions: 'private',
} as const

let fixture: OciFixture

describe('the user ids of sandboxes', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  before(async () => {
    fixture = await makeOciFixture()
  })
  after(async () => {
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  test('two sandboxes write to one volume, and each sees the other’s files with the users inside', async () => {
    await withDriver({}, async (driver) => {
      const [one, two] = [await start(driver, { mounts: [MOUNT] }), await start(driver, { mounts: [MOUNT] })]
      assert.notEqual(recordOf(one).ids?.uid_shift, recordOf(two).ids?.uid_shift)
      await inside(one, 'echo x >/shared/own; chown 1000:50 /shared/own; mkdir -m 700 /shared/private')
      assert.equal(await inside(two, 'stat -c "%u %g" /shared/own; stat -c %u /shared/private'), '1000 50\n0\n')
      await inside(two, 'echo y >>/shared/own; echo z >/shared/private/z')
      const stored = statSync(join(fixture.volume, 'own'))
      const { uidShift } = fixture.settings
      assert.deepEqual([stored.uid, stored.gid], [uidShift + 1000, uidShift + 50])
      assert.equal(statSync(join(fixture.volume, 'private/z')).uid, uidShift)
    })
  })

  test('a disk keeps its owners when the sandbox starts again with other ids, and its patches belong to user 0', async () => {
    const patches = [{ type: 'text', path: '/patched', content: 'p', mode: null, replace: false }] as const
    const first = makeDesiredRun({ patches })
    await withDriver({}, async (driver) => {
      await driver.start(first, NEVER)
      await inside(first, 'echo x >/home/alice/mine; chown 1000 /home/alice/mine; chown 1000 /etc/passwd')
    })
    const again = makeDesiredRun({ patches }, first.sandbox_id)
    const uidRange = { ...fixture.settings.uidRange, last: fixture.settings.uidRange.first + 3 * SANDBOX_IDS }
    await withDriver({ uidRange }, async (driver) => {
      await driver.start(again, NEVER)
      assert.ok((recordOf(again).ids?.range_first ?? 0) < uidRange.last)
      assert.equal(
        await inside(again, 'stat -c %u /home/alice/mine /etc/passwd /patched /etc/group / /root'),
        '1000\n1000\n0\n0\n0\n0\n',
      )
      assert.equal(await inside(again, 'echo y >/etc/group; rm /patched; touch /patched; stat -c %u /patched'), '0\n')
    })
  })

  test('a run’s ids are given to no other until it has ended, whichever worker process started it', async () => {
    const { first } = fixture.settings.uidRange
    const uidRange = { first, last: first + 2 * SANDBOX_IDS - 1 }
    const opened = await fixture.open({ uidRange })
    const one = await start(opened)
    await opened.close()
    await withDriver({ uidRange }, async (driver) => {
      const two = await start(driver)
      assert.notEqual(recordOf(two).ids?.range_first, recordOf(one).ids?.range_first)
      await assert.rejects(
        start(driver),
        (error) => error instanceof StartError && error.reason === 'host' && /SANDYARD_UID_RANGE/.test(error.message),
      )
      await driver.stop(one.run_id, 0)
      const three = await start(driver)
      assert.equal(recordOf(three).ids?.range_first, recordOf(one).ids?.range_first)
    })
  })

  test(
    'a user namespace belongs to the first id of its run’s range, and limits what its users have together',
    joins,
    async () => {
      await withDriver({}, async (driver) => {
        const run = await start(driver)
        assert.equal(namespaceOwnerOf(run), recordOf(run).ids?.range_first)
        const limits = await inside(run, 'grep -E "pending|msgqueue" /proc/1/limits | tr -s " "')
        assert.equal(limits, 'Max pending signals 4096 4096 signals \nMax msgqueue size 819200 819200 bytes \n')
      })
    },
  )

  test(
    'a spec may ask for more pending signals and message queues, up to a bound that is reported',
    joins,
    async () => {
      await withDriver({}, async (driver) => {
        const rlimits = [
          { resource: 'sigpending', soft: 5000, hard: 50_000 },
          { resource: 'msgqueue', soft: 1000, hard: 2000 },
        ] as const
        const run = await start(driver, { rlimits })
        const limits = await inside(run, 'grep -E "pending|msgqueue" /proc/1/limits | tr -s " "')
        assert.equal(limits, 'Max pending signals 5000 16384 signals \nMax msgqueue size 1000 2000 bytes \n')
        assert.match(recordOf(run).facts['clamped_rlimits'] ?? '', /sigpending 50000 to 16384/)
      })
    },
  )

  test('the process that makes user namespaces is replaced when it was killed', joins, async () => {
    await withDriver({}, async (driver) => {
      await start(driver)
      const helpers = readdirSync('/proc').filter((pid) => {
        const [, script = '', worker] = /^\d+$/.test(pid) ? commandLineOf(Number(pid)) : []
        return script.endsWith('/user-namespaces.pl') && worker === String(process.pid)
      })
      assert.equal(helpers.length, 1)
      for (const pid of helpers) process.kill(Number(pid), 'SIGKILL')
      // A start at the moment of the kill may fail, because its namespaces are gone.
      await waitUntil(() =>
        start(driver).then(
          () => true,
          () => false,
        ),
      )
    })
  })

  test('a sandbox that an earlier version started runs on and ends', async () => {
    const opened = await fixture.open()
    const run = await start(opened)
    await opened.close()
    const { ids, ...earlier } = recordOf(run)
    assert.notEqual(ids, undefined)
    writeFileSync(recordPathOf(run), JSON.stringify(earlier))
    await withDriver({}, async (driver) => {
      assert.equal(await inside(run, 'echo fine'), 'fine\n')
      assert.equal((await driver.list()).find(({ run_id }) => run_id === run.run_id)?.phase, 'running')
    })
  })

  describe('where mounts can’t be idmapped', () => {
    after(() => {
      Object.assign(fixture.folders, { images: fixture.dir, volumes: join(fixture.dir, 'volumes') })
    })

    test('sandboxes with volumes share ids, and the others do not', async () => {
      fixture.folders.volumes = UNMAPPABLE
      await withDriver({}, async (driver) => {
        const [plain, sharing] = [await start(driver), await start(driver, { mounts: [MOUNT] })]
        assert.equal(recordOf(plain).ids?.uid_shift, recordOf(plain).ids?.range_first)
        assert.equal(recordOf(sharing).ids?.uid_shift, fixture.settings.uidShift)
        await inside(sharing, 'echo x >/shared/by-sharing; chown 7 /shared/by-sharing')
        assert.equal(statSync(join(fixture.volume, 'by-sharing')).uid, fixture.settings.uidShift + 7)
        assert.match((await driver.probe()).report.isolation, /user ids of its own, or shared if it mounts a volume/)
      })
    })

    test('all sandboxes run with the shared ids, each in a user namespace of its own user, and the worker says so', async () => {
      Object.assign(fixture.folders, { images: UNMAPPABLE, volumes: UNMAPPABLE })
      fixture.logged.length = 0
      await withDriver({}, async (driver) => {
        const runs = [await start(driver), await start(driver, { mounts: [MOUNT] })]
        for (const run of runs) {
          assert.equal(recordOf(run).ids?.uid_shift, fixture.settings.uidShift)
          await inside(run, 'echo x >/tmp/own')
          assert.equal(statSync(join(rootOf(run), 'tmp/own')).uid, fixture.settings.uidShift)
        }
        if (!joins.skip) assert.equal(new Set(runs.map(namespaceOwnerOf)).size, 2)
        assert.match(
          (await driver.probe()).report.isolation,
          /user ids shared by all sandboxes \(\/proc: .*Invalid argument/,
        )
        const warnings = fixture.logged.filter(({ message }) => message.includes('can not be idmapped'))
        assert.equal(warnings.length, 2)
      })
    })
  })
})

async function withDriver(overrides: Partial<OciSettings>, use: (driver: Driver) => Promise<void>): Promise<void> {
  const driver = await fixture.open(overrides)
  try {
    await use(driver)
  } finally {
    for (const { run_id } of await driver.list()) await driver.remove(run_id)
    await driver.close()
  }
}

async function start(driver: Driver, spec: Partial<SandboxSpec> = {}): Promise<DesiredRun> {
  const desired = makeDesiredRun(spec)
  await driver.start(desired, NEVER)
  return desired
}

async function inside({ run_id }: DesiredRun, command: string): Promise<string> {
  const { code, stdout, stderr } = await fixture.exec(run_id, ['sh', '-c', command])
  assert.equal(code, 0, stderr)
  return stdout
}

function recordPathOf({ run_id }: DesiredRun): string {
  return join(fixture.dir, 'state/runs', run_id, 'state.json')
}

function recordOf(run: DesiredRun): OciRunRecord {
  return JSON.parse(readFileSync(recordPathOf(run), 'utf8'))
}

/** The root of a sandbox as the host mounted it. */
function rootOf({ run_id }: DesiredRun): string {
  return join('/run/sandyard', folderHash(join(fixture.dir, 'state')), run_id, 'root')
}

/** The host's user who owns the user namespace of a run (ioctl_ns(2), NS_GET_OWNER_UID). */
function namespaceOwnerOf(run: DesiredRun): number {
  const pid = recordOf(run).started?.init?.pid
  const script = `open my $n, '<', '/proc/${String(pid)}/ns/user'; my $o = pack 'L', 0; ioctl $n, 0xb704, $o; print unpack 'L', $o`
  return Number(execFileSync('perl', ['-e', script], { encoding: 'utf8' }))
}
