import assert from 'node:assert/strict'
import { openAttackedDriver } from '../support/attacked-driver.ts'
import { whyNoOci } from '../support/oci-driver.ts'
import { attack } from '../support/security-attack.ts'

const skip = whyNoOci()

/** Files in which the kernel describes mounts to every process. The fourth field of mountinfo is the path of what is mounted. */
const FILES = ['mountinfo', 'mounts', 'mountstats'].flatMap((name) => [`/proc/self/${name}`, `/proc/1/${name}`])

/** Roots of mounts that are no paths of the machine: of whole file systems, of the sandbox's own `/proc`, and of device nodes. */
const HARMLESS_ROOT = /^\/$|^\/(bus|fs|irq|sys|sysrq-trigger|mtrr)$|^\/null$/
/** The folder and the init program of the toolbox's own tmpfs. */
const TOOLBOX_ROOT = /^\/[0-9a-f]{16}(\/init)?$/

attack(
  'learns paths of the machine from its mounts',
  { target: 'host', attacker: 'root in a sandbox', finding: 14, skip },
  async () => {
    await using attacked = await openAttackedDriver()
    const run = await attacked.start()
    const read = await attacked.inside(run, `cat ${FILES.join(' ')}`)
    assert.match(read.stdout, / - tmpfs /)
    for (const path of [attacked.fixture.dir, '/sandyard', 'catatonit', '/var/lib', '/run/', '/tmp/'])
      assert.ok(!read.stdout.includes(path), `${path} is in:\n${read.stdout}`)
    const mountinfo = (await attacked.inside(run, 'cat /proc/self/mountinfo')).stdout.trim().split('\n')
    const roots = mountinfo.map((line) => line.split(' ')[3] ?? '')
    assert.deepEqual(roots.filter((root) => !HARMLESS_ROOT.test(root) && !TOOLBOX_ROOT.test(root)), []) // prettier-ignore
    return { tries: FILES.length, outcome: `none of ${String(roots.length)} mounts shows a path of the machine` }
  },
)
