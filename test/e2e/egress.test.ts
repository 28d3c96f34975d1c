import { testEgress } from '../support/egress-walk.ts'
import { isInOwnNetwork } from '../support/own-network.ts'
import { whyNoServer } from '../support/server.ts'

if (isInOwnNetwork(import.meta.filename)) testEgress('oci', whyNoServer())
