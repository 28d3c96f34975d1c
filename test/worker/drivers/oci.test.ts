import { makeOciFixture, testRuntime, whyNoOci } from '../../support/oci-driver.ts'
import { warmUp } from '../../support/warm-up.ts'
import { describeRealConformance } from './real-conformance.ts'

describeRealConformance({ name: 'oci', whyNot: whyNoOci(), make: () => makeOciFixture() })

describeRealConformance({
  name: 'oci with warm sandboxes',
  whyNot: whyNoOci() ?? (testRuntime() === 'crun' ? null : 'only crun has warm sandboxes'),
  async make() {
    const fixture = await makeOciFixture()
    return {
      ...fixture,
      async open() {
        const driver = await fixture.open({ warm: 4 })
        await warmUp(driver, 2)
        return driver
      },
    }
  },
})
