import assert from 'node:assert/strict'
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ISOLATION_LEVELS } from '../../src/domain/isolation.ts'
import { call, mustCall } from '../support/api.ts'
import { findLeftovers } from '../support/leftovers.ts'
import { testRuntime } from '../support/oci-driver.ts'
import { makeProgram } from '../support/program.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { attack } from '../support/security-attack.ts'
import { startServer, whyNoServer } from '../support/server.ts'

const skip = whyNoServer() === false ? null : String(whyNoServer())
const own = testRuntime() === 'runsc' ? 'gvisor' : 'container'
const weaker = ISOLATION_LEVELS.slice(0, ISOLATION_LEVELS.indexOf(own) + 1)
const stronger = ISOLATION_LEVELS.slice(ISOLATION_LEVELS.indexOf(own) + 1)
const bodyWith = (name: string, labels: Readonly<Record<string, string>>) => ({ name, image: DEMO_IMAGE, labels })

attack(
  'gets a sandbox with less isolation than its owner demands',
  { target: 'neighbours', attacker: 'a worker that is weaker than demanded', finding: null, skip },
  async () => {
    const server = await startServer({ SANDYARD_DRIVER: 'oci', SANDYARD_RUNTIME: testRuntime() })
    try {
      for (const level of stronger) {
        const label = { 'sandyard.isolation': level }
        const answer = await call(server, 'create_sandbox', { body: bodyWith(level, label) })
        assert.ok(answer.isRefusal, `${level} was promised by ${testRuntime()}`)
        assert.match(answer.body.error.message, new RegExp(`labels.sandyard.isolation .*the isolation ${level}`))
      }
      const unknown = await call(server, 'create_sandbox', { body: bodyWith('x', { 'sandyard.isolation': 'strong' }) })
      assert.ok(unknown.isRefusal)
      assert.match(unknown.text, /container, gvisor, microvm/)
      for (const level of weaker) {
        const query = { start: 'true', wait_for: 'running', wait_timeout: '60' }
        const body = bodyWith(`own-${level}`, { 'sandyard.isolation': level })
        const sandbox = await mustCall(server, 'create_sandbox', { query, body })
        assert.equal(sandbox.status, 'running')
        assert.equal(sandbox.isolation, own)
      }
    } finally {
      await server.close()
    }
    return {
      tries: stronger.length + 1,
      outcome: `a ${testRuntime()} worker ran sandboxes that demand ${weaker.join(' or ')}, and none that demands ${stronger.join(' or ')}`,
    }
  },
)

attack(
  'runs sandboxes on a worker that isolates less than the operator demands',
  { target: 'host', attacker: 'an operator’s mistake', finding: null, skip },
  async () => {
    const root = mkdtempSync(join(tmpdir(), 'sandyard-isolation-'))
    chmodSync(root, 0o711) // PostgreSQL runs as an unprivileged user, who must reach its folder
    const dataDir = join(root, 'data')
    const settings = {
      SANDYARD_DATA_DIR: dataDir,
      SANDYARD_PORT: '0',
      SANDYARD_API_KEY: 'a-key-of-this-test',
      SANDYARD_DRIVER: 'oci',
      SANDYARD_RUNTIME: testRuntime(),
      SANDYARD_REQUIRE_ISOLATION: 'microvm',
    }
    const program = makeProgram(['up'], settings, /ready on (\S+)/)
    try {
      const [, url = ''] = await program.start()
      assert.match(program.output(), /CAN'T RUN HERE: SANDYARD_REQUIRE_ISOLATION is microvm/)
      const answer = await call({ url, key: settings.SANDYARD_API_KEY }, 'create_sandbox', { body: bodyWith('x', {}) })
      assert.ok(answer.isRefusal)
    } finally {
      await program.stop()
    }
    assert.deepEqual(await findLeftovers(dataDir), [])
    rmSync(root, { recursive: true })
    return { tries: 1, outcome: 'the server offered no sandbox, said why, and left nothing on the machine' }
  },
)
