import { makeOciFixture, whyNoOci } from '../../support/oci-driver.ts'
import { describeRealConformance } from './real-conformance.ts'

describeRealConformance({ name: 'oci', whyNot: whyNoOci(), make: () => makeOciFixture() })
