import { after, before } from 'node:test'
import { makeMicroVmFixture, whyNoMicroVms, type MicroVmFixture } from '../../support/microvm-driver.ts'
import { wantedRun } from '../../support/wanted-run.ts'
import { describeConformance } from './conformance.ts'

const whyNot = await whyNoMicroVms()
let fixture: MicroVmFixture

before(async () => {
  if (whyNot === null) fixture = await makeMicroVmFixture()
})
after(async () => {
  if (whyNot === null) await fixture.remove()
})

const runtime = {
  entrypoint: null,
  hostname: null,
  log_level: null,
  metrics_sample_interval_ms: null,
  disable_metrics_sample: false,
}
const cmd = ['sh', '-c', 'sleep 0.1; exit 7']

describeConformance({
  name: 'microsandbox',
  whyNot,
  open: () => fixture.open(),
  wanted: wantedRun,
  specs: {
    failing: { image: 'elsewhere/none' },
    slow: { image: 'local/slow' },
    endsWith7: { runtime: { ...runtime, cmd, scripts: {}, shell: null, user: null, workdir: null } },
  },
  run: async (run, script) => (await fixture.exec(run, ['sh', '-c', script])).stdout,
  leftovers: () => fixture.leftovers(),
})
