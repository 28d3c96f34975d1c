import { isInOwnNetwork } from '../support/own-network.ts'
import { testPublishedPorts } from '../support/published-ports-walk.ts'
import { whyNoServer } from '../support/server.ts'

if (isInOwnNetwork(import.meta.filename)) testPublishedPorts('oci', whyNoServer())
