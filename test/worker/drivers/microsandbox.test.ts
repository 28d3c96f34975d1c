import { makeMicroVmFixture, whyNoMicroVms } from '../../support/microvm-driver.ts'
import { describeRealConformance } from './real-conformance.ts'

describeRealConformance({ name: 'microsandbox', whyNot: await whyNoMicroVms(), make: () => makeMicroVmFixture() })
