/**
 * The close codes and reasons with which a command channel ends. docs/channels.md explains them. The public client
 * shows neither code nor reason. Codes below 4000 are standard: RFC 6455, section 7.4.1, and the IANA registry (1012).
 * Codes from 4000 on are private: 4000 plus the HTTP status of a similar refusal.
 */
export const CHANNEL_ENDS = {
  client_done: { code: 1000, reason: 'goodbye' },
  agent_done: { code: 1000, reason: 'the agent of the sandbox ended the channel' },
  server_closing: { code: 1001, reason: 'the server is closing' },
  not_binary: { code: 1003, reason: 'only binary messages are accepted' },
  client_broke_framing: { code: 1008, reason: 'the agent of the sandbox received an invalid frame' },
  client_broke_websocket: { code: 1002, reason: 'the client sent an invalid WebSocket frame' },
  message_too_large: { code: 1009, reason: 'a message is too large' },
  channel_failed: { code: 1011, reason: 'the channel failed on the worker' },
  worker_lost: { code: 1011, reason: 'the connection to the worker was lost' },
  worker_closing: { code: 1012, reason: 'the worker is restarting; its sandboxes continue' },
  api_key_revoked: { code: 4401, reason: 'the API key was revoked' },
  api_key_expired: { code: 4401, reason: 'the API key expired' },
  session_ended: { code: 4401, reason: 'the session ended, or its rights changed' },
  org_suspended: { code: 4403, reason: 'the organization was suspended' },
  client_silent: { code: 4408, reason: 'no answer to a ping' },
  sandbox_stopped: { code: 4410, reason: 'the sandbox stopped' },
  sandbox_failed: { code: 4410, reason: 'the sandbox failed' },
  sandbox_deleted: { code: 4410, reason: 'the sandbox was deleted' },
} as const // prettier-ignore

export type ChannelEnd = keyof typeof CHANNEL_ENDS

/** The close codes with their reasons as one sentence, for the OpenAPI document. */
export const CHANNEL_ENDS_TEXT = `The close code says why the channel ended: ${[
  ...Map.groupBy(Object.values(CHANNEL_ENDS), ({ code }) => code),
]
  .toSorted(([a], [b]) => a - b)
  .map(([code, ends]) => `${String(code)} ${ends.map(({ reason }) => reason).join(', or ')}`)
  .join('; ')}.`

/** How the client's channel ends when the worker has closed its stream with `code`. */
export function channelEndOfWorkerCode(code: number): ChannelEnd {
  switch (code) {
    case CHANNEL_ENDS.agent_done.code:
      return 'agent_done'
    case CHANNEL_ENDS.client_broke_framing.code:
      return 'client_broke_framing'
    case CHANNEL_ENDS.channel_failed.code:
      return 'channel_failed'
    case CHANNEL_ENDS.worker_closing.code:
      return 'worker_closing'
    default:
      return 'worker_lost'
  }
}
