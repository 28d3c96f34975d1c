/** A sandbox writes `/etc/passwd` and `/etc/group`, and the worker reads them for each command. */
import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { OrgId } from '../../../../src/domain/ids.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import type { GuestExec } from '../../../../src/worker/channel/guest.ts'
import { makeSessionPermits } from '../../../../src/worker/channel/session-permits.ts'
import type { Container } from '../../../../src/worker/drivers/oci/container.ts'
import { makeContainerGuest } from '../../../../src/worker/drivers/oci/exec/container-guest.ts'
import type { FifoPool } from '../../../../src/worker/drivers/oci/exec/fifo-pool.ts'
import type { Launcher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { readUserFiles, resolveUser } from '../../../../src/worker/drivers/oci/rootfs/users.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'

const LIMIT_BYTES = 256 * 1024
let folder = ''

before(() => {
  folder = mkdtempSync(join(tmpdir(), 'user-files-'))
  mkdirSync(join(folder, 'etc'))
})
after(() => {
  rmSync(folder, { recursive: true })
})

test('a user file is read up to a limit, and an entry that the limit cuts is not used', async () => {
  const [first, cut] = ['first:x:7:7::/first:\n', 'cut:x:1234:0::/:\n']
  const filler = (bytes: number): string => `${'x:\n'.repeat(bytes / 3)}`.padEnd(bytes, '\n')
  const before = LIMIT_BYTES - first.length - 'cut:x:12'.length
  const passwd = `${first}${filler(before)}${cut}${filler(4 * LIMIT_BYTES)}last:x:8:8::/last:\n`
  writeFileSync(join(folder, 'etc/passwd'), passwd)
  writeFileSync(join(folder, 'etc/group'), `${filler(2 * LIMIT_BYTES)}late:x:9:first\n`)
  for (const isFresh of [false, true]) {
    const files = await readUserFiles({ root: folder, isFresh })
    assert.ok(files.passwd.length + files.group.length <= 2 * LIMIT_BYTES)
    assert.deepEqual(resolveUser('first', files), { uid: 7, gid: 7, additionalGids: [], home: '/first' })
    for (const name of ['cut', 'last']) assert.match(JSON.stringify(resolveUser(name, files)), /is not in the image/)
    assert.match(JSON.stringify(resolveUser('first:late', files)), /is not in the image/)
  }
})

test('no file of the sandbox is read for a command without a permit', async () => {
  writeFileSync(join(folder, 'etc/passwd'), '')
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ process: {}, linux: {} }))
  const container: Container = {
    id: 'box',
    runtime: ['crun'],
    runtimeName: 'crun',
    initPid: process.pid,
    rootPath: folder,
    uidShift: 0,
    runDir: folder,
    pipeDir: folder,
    orgId: 'org' as OrgId,
    commandCgroups: [],
    watchMemory: () => () => null,
    spec: DEFAULT_SPEC_FOR_TESTS,
    image: { env: [], entrypoint: [], cmd: [], workdir: null, user: null },
  }
  const request: GuestExec = { cmd: 'true', args: [], env: [], cwd: null, user: 'nobody', tty: null, rlimits: [] }
  const execWith = (perSandbox: number): Promise<unknown> => {
    const sessions = makeSessionPermits({ perSandbox, perOrg: 1, total: 1 })
    const unused = { launcher: {} as Launcher, fifoPool: {} as FifoPool } // nothing is started
    return makeContainerGuest(container, { ...unused, log: makeLog('warn'), sessions, pty: null }).exec(request)
  }
  await assert.rejects(execWith(0), { kind: 'resource_limit' })
  await assert.rejects(execWith(1), { kind: 'user_setup_failed' })
})
