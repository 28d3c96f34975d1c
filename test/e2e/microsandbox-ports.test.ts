import { findMissingMicroVmRequirements } from '../../src/worker/drivers/microsandbox/installation.ts'
import { testPublishedPorts } from '../support/published-ports-walk.ts'
import { isInOwnNetwork } from '../support/own-network.ts'

/** In an emulated processor, all of it takes minutes. */
const LIMIT_MS = 1_500_000

const lacks = await findMissingMicroVmRequirements()
if (isInOwnNetwork(import.meta.filename, LIMIT_MS))
  testPublishedPorts('microsandbox', lacks.length === 0 ? false : lacks.join('; '))
