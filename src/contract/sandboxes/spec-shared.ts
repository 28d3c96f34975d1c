import { Type } from 'typebox'
import { PORT_MAX } from '../../domain/requests/request-bounds.ts'
import { requestObject, int32 } from '../common.ts'

/** Schemas that the specification uses in requests and in replies. */

export const EnvVar = requestObject(
  { key: Type.String(), value: Type.String() },
  { title: 'EnvVar', description: 'An environment variable.' },
)

export const PortRange = requestObject(
  { start: int32({ maximum: PORT_MAX }), end: int32({ maximum: PORT_MAX }) },
  { title: 'PortRange', description: 'Ports of the sandbox, both ends included.' },
)
