// @ts-check
// The steps in their order.

import { batching } from "./batching.js";
import { challenge } from "./challenge.js";
import { keysValues } from "./keys_values.js";
import { memory } from "./memory.js";
import { oneToken } from "./one_token.js";
import { speculation } from "./speculation.js";
import { withWithout } from "./with_without.js";

export const STEPS = [oneToken, keysValues, withWithout, memory, speculation, batching, challenge];
