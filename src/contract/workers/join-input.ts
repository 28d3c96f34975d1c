import { Type } from 'typebox'
import { requestObject, int32 } from '../common.ts'

const Text = Type.String({ maxLength: 200 })
/** A join token, or the token of a Kubernetes service account. */
const Token = Type.String({ maxLength: 6_000 })

/** The body of `POST /worker/v1/join`: see `JoinRequest`. */
export const JoinInput = requestObject({
  protocol: int32(),
  token: Token,
  credential_sha256: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  name: Type.Union([Text, Type.Null()]),
  fallback_name: Text,
})
